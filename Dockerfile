# One image for every process; the command says which. Build with Node 24 instead: --build-arg NODE_VERSION=24
ARG NODE_VERSION=20

FROM node:${NODE_VERSION}-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci
COPY tsconfig.json ./
COPY lib lib
COPY services services
# The compiler's own notes are of no use to who runs what it made.
RUN npx tsc && rm -f dist/.tsbuildinfo

# Without optional dependencies: the embedded Postgres is for development machines.
FROM node:${NODE_VERSION}-slim AS dependencies
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --omit=dev --omit=optional

FROM node:${NODE_VERSION}-slim
ENV NODE_ENV=production
WORKDIR /app
COPY --from=dependencies /app/node_modules node_modules
COPY --from=build /app/dist dist
# Read at run time: the version, and the schema.
COPY package.json ./
COPY migrations migrations

# The image's account `node`, by number, so that a supervisor can see that it is not root. Nothing in /app is written to.
USER 1000:1000

# api, dispatcher, reconciler, receiver
EXPOSE 8080 9091 9092 9099

# Node itself is process 1 and handles SIGTERM and SIGINT: no shell stands in between, and none is needed. Other processes:
# dist/services/{dispatcher,reconciler,receiver,migrate}/main.js
CMD ["node", "dist/services/api/main.js"]
