import { StreamConsumer } from '../../lib/broker/consumer.ts';
import type { DispatcherConfig } from '../../lib/config/dispatcher.ts';
import type { Share } from '../../lib/domain/cap-share.ts';
import { LOCAL_WAIT_MS, SETTLE_MARGIN_MS } from '../../lib/domain/limits.ts';
import { type ChatTransport, LANES, type Lane } from '../../lib/domain/vocabulary.ts';
import { deliveryMetrics } from '../../lib/metrics/delivery.ts';
import { registerProcessMetrics } from '../../lib/metrics/process.ts';
import { rateMetrics } from '../../lib/metrics/rate.ts';
import { Metrics } from '../../lib/metrics/registry.ts';
import type { RunningService } from '../../lib/runtime/lifecycle.ts';
import type { Logger } from '../../lib/runtime/log.ts';
import { Loop } from '../../lib/runtime/loop.ts';
import { pause } from '../../lib/runtime/pause.ts';
import { warnUnlessDurable } from '../../lib/store/durability.ts';
import { requireCurrentSchema } from '../../lib/store/migrate.ts';
import { requireSecretKeys } from '../../lib/store/secret-box.ts';
import { readHorizons } from '../../lib/store/slots.ts';
import { endPools, loggedPool, startLink } from '../fleet/connections.ts';
import { FleetMember } from '../fleet/member.ts';
import { FleetRateLimiter } from '../fleet/rate-limiter.ts';
import { startStatusServer } from '../fleet/status-server.ts';
import { EndpointCache } from './endpoint-cache.ts';
import { EndpointStates } from './endpoint-state.ts';
import { HealthReporter } from './health-reporter.ts';
import { Intake } from './intake.ts';
import { PollSource } from './poll-source.ts';
import { RateGate } from './rate-gate.ts';
import { createSender } from './sending/sender.ts';
import { Settler } from './settler.ts';
import { type Announced, StreamSource } from './stream-source.ts';
import { Mailer } from './transports/mailer.ts';
import { Transports } from './transports/transports.ts';
import { Workshop } from './workshop.ts';

const EXPIRE_EVERY_MS = 100;
/** Fewer deliveries under way than this are done before more could be claimed. */
const STARVING_BELOW = 64;
const LEAVE_LIMIT_MS = 2_000;

export interface DispatcherOptions {
  config: DispatcherConfig;
  log: Logger;
  /** For the one line of each attempt. */
  lines: Logger;
  version: string;
  /** Where the APIs of chat platforms are, instead of where they are: for tests. */
  platforms?: Partial<Record<ChatTransport, string>>;
}

/**
 * Starts a dispatcher: it reads ids from its group (and from the queue in poll mode), claims those rows, sends, settles. Any number of them may
 * run. Throws when the schema is behind, a secret's key is missing or the database is away.
 */
export async function startDispatcher({
  config,
  log,
  lines,
  version,
  platforms,
}: DispatcherOptions): Promise<RunningService & { metricsUrl: string }> {
  await requireCurrentSchema(config.databaseUrl);
  const pools = createPools(config, log);
  await requireSecretKeys(pools.general, config.secretKeys);
  await warnUnlessDurable(pools.general, log);
  const link = await startLink(config.broker, log);
  const member = await new FleetMember({ pool: pools.general, role: 'dispatcher', link, log }).start();

  const share = (): Share => ({ rank: member.fleet.dispatchersBefore, live: member.fleet.liveDispatchers });

  const metrics = new Metrics({ processMetrics: true });
  const counted = deliveryMetrics(metrics, {
    inFlight: () => workshop.inFlight,
    ready: () => workshop.ready,
    readAhead: () => intake.readAhead,
    oldestUnsettledMs: () => settler.oldestUnsettledMs,
    idleClients: () => sender.stats().idle,
  });
  const settler = new Settler({
    pool: pools.settle,
    processNumber: () => member.number,
    metrics: counted,
    log,
    lanes: config.settleConnections,
    maxBatch: config.settleBatch,
    lingerMs: config.settleLingerMs,
  });
  const sender = createSender({
    policy: config.destination,
    maxResponseBytes: config.maxResponseBytes,
    maxIdleClients: config.maxIdleClients,
  });
  const mailer =
    config.smtp &&
    new Mailer({ server: config.smtp, idleTimeoutMs: config.idleTimeoutMs, now: () => member.now() });
  const transports = new Transports({
    sender,
    mailer,
    userAgent: `${config.headerPrefix}/${version} (webhooks)`,
    ...(platforms === undefined ? {} : { bases: platforms }),
  });
  const states = new EndpointStates({ breakerEnabled: config.breaker.enabled });
  const health = new HealthReporter({
    pool: pools.gates,
    states,
    policy: { breaker: config.breaker, autoDisableMs: config.autoDisableMs },
    probeMs: LOCAL_WAIT_MS + config.requestTimeoutMs + SETTLE_MARGIN_MS,
    metrics: counted,
    log,
  });
  const rate = new RateGate(
    new FleetRateLimiter({
      link,
      readHorizons: (endpoints) => readHorizons(pools.gates, endpoints),
      liveDispatchers: () => member.fleet.liveDispatchers,
      metrics: rateMetrics(metrics),
      onFallback: (reason) =>
        log.warn(
          { reason },
          'rates are kept by this process alone, at its part of them, until Redis answers',
        ),
    }),
  );
  const workshop = new Workshop({
    pool: pools.general,
    sender,
    transports,
    settler,
    states,
    health,
    rate,
    share,
    metrics: counted,
    log,
    lines,
    leaseMs: config.leaseMs,
    retryPolicy: config.retryPolicy,
    snippetBytes: config.maxResponseBytes,
    now: () => member.now(),
    maxInFlight: config.maxInFlight,
    maxPayloadBytes: config.maxPayloadBytes,
    onRoom: () => {
      intake.pump();
      for (const source of sources) if (wanted(source.lane) > 0) source.wake();
    },
  });
  const intake: Intake = new Intake({
    pool: pools.claim,
    endpoints: new EndpointCache({ ...config, version, pool: pools.general }),
    processNumber: () => member.number,
    part: share,
    leaseMs: config.leaseMs,
    maxBatch: config.claimBatch,
    lingerMs: config.claimLingerMs,
    lanes: config.claimConnections,
    wanted: () => workshop.wanted(intake.claiming),
    takesBulk: () => workshop.takesBulk,
    // What hangs keeps nothing busy: counted, it made every fresh delivery wait for company.
    starving: () => workshop.quickInFlight + intake.claiming < STARVING_BELOW,
    onJobs: (jobs) => workshop.take(jobs),
    onUnusable: (claims) => workshop.giveBack(claims),
    onDecided: (ids) => {
      for (const source of sources) source.decide(ids.filter((id) => id.lane === source.lane));
    },
    metrics: counted,
    log,
  });
  /** Ids that reading ahead may add: at most two claims' worth, and no more than what can be begun. */
  const wanted = (lane: Lane) => {
    if (lane === 'bulk' && !workshop.takesBulk) return 0;
    const most = Math.min(2 * config.claimBatch, workshop.wanted(intake.claiming) + config.claimBatch);
    return most - intake.readAheadOf(lane);
  };
  const sources = link
    ? LANES.map((lane) =>
        new StreamSource({
          link,
          lane,
          consumer: new StreamConsumer(link, {
            lane,
            consumer: member.id,
            blockMs: config.blockMs,
            onStall: () => counted.readStalls.inc(),
            onMalformed: (count) => counted.malformed.inc(count),
          }),
          takeoverIdleMs: config.takeoverIdleMs,
          wanted: () => wanted(lane),
          onIds: (ids) => intake.add(ids),
          metrics: counted,
          log,
        }).start(),
      )
    : [];
  const poll = new PollSource({
    databaseUrl: config.databaseDirectUrl,
    pollMode: () => member.pollMode,
    wanted: () => Math.min(config.claimBatch, workshop.wanted(intake.claiming)),
    poll: (limit) => intake.poll(limit),
    idleMs: config.pollIntervalMs,
    log,
  }).start();
  const stuckness = new Stuckness(log);
  const expiry = new Loop({
    name: 'local-wait',
    log,
    round: async () => {
      workshop.expireWaits();
      stuckness.note(settler.stuck);
      intake.pump();
      return EXPIRE_EVERY_MS;
    },
  }).start();

  const loops = [member.loop, ...sources.flatMap((source) => source.loops), ...poll.loops, expiry];
  registerProcessMetrics(
    metrics,
    loops.map((loop) => loop.name),
    { wake: () => member.wake, brokerUp: () => link?.up ?? false, loops: () => loops },
  );
  const status = await startStatusServer({
    bind: config.metricsBind,
    registry: metrics.registry,
    pool: pools.general,
    loops,
  });
  log.info({ number: member.number, wake: member.wake, metrics: status.url }, 'dispatcher started');

  return {
    metricsUrl: status.url,
    async stop() {
      const deadline = performance.now() + config.shutdownDeadlineMs;
      const left = () => Math.max(0, deadline - performance.now());
      // Nothing is begun from here on; what is claimed but not begun goes back at once.
      const sent = workshop.stop(left());
      await Promise.all([...sources.map((source) => source.stopReading()), poll.stop()]);
      const unclaimed: Announced[] = await intake.stop();
      const goodbyes = sources.map((source) =>
        source.leave(unclaimed.filter((id) => id.lane === source.lane)),
      );
      await Promise.all([sent, ...goodbyes]);
      await Promise.race([health.drain(), pause(LEAVE_LIMIT_MS)]);
      const unwritten = await settler.drain(left() + LEAVE_LIMIT_MS);
      if (workshop.inFlight > 0 || unwritten > 0) {
        log.warn(
          { sending: workshop.inFlight, unwritten },
          'stopped at the drain limit: their leases will bring these back',
        );
      }
      await expiry.stop();
      mailer?.close();
      await sender.close();
      await member.stop();
      await Promise.all([status.close(), link?.stop(), endPools(pools)]);
      log.info('dispatcher stopped');
    },
  };
}

/** Says once when outcomes can no longer be written, and once when they can. */
class Stuckness {
  readonly #log: Logger;
  #stuck = false;

  constructor(log: Logger) {
    this.#log = log;
  }

  note(stuck: boolean): void {
    if (stuck === this.#stuck) return;
    this.#stuck = stuck;
    if (stuck)
      this.#log.error('outcomes could not be written for 2 s: nothing new is claimed until they are');
    else this.#log.info('outcomes are written again: claiming goes on');
  }
}

function createPools(config: DispatcherConfig, log: Logger) {
  const pool = (purpose: 'hot' | 'general', name: string, max: number) =>
    loggedPool(
      {
        url: config.databaseUrl,
        purpose,
        max,
        applicationName: `relay-dispatcher-${name}`,
      },
      log,
    );
  return {
    // A poll may run beside the claims by id, and the one lane each of KEEP and DEFER beside the lanes of FINISH.
    claim: pool('hot', 'claim', config.claimConnections + 1),
    settle: pool('hot', 'settle', config.settleConnections + 2),
    // A gate that waits for a connection holds up what is ready to be sent.
    gates: pool('hot', 'gates', 2),
    general: pool('general', 'general', 3),
  };
}
