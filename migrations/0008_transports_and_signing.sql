-- Where else deliveries go, and how else they are signed.
--
-- `transport` says what `url` means and what the request to it looks like. A transport builds the request and nothing else: queue, gates,
-- retries and log know of none. For a chat or a mail server the credential stands in `secret`, sealed like every secret.
--
-- `headers` are the custom headers of an endpoint. Their values are credentials as often as not, so the whole of them is sealed as one
-- value; the names stand beside it in the clear, because that is what is shown and what is compared with the prefix.
--
-- `header_prefix` takes the place of the configured one in the names of Relay's own headers.
--
-- A key pair signs beside the secret under Standard Webhooks. The private key is sealed; the public one is what receivers are given, and
-- reading it must not need the key that opens the other. Its rotation has both halves or none, as that of the secret.

alter table relay.endpoints
  drop constraint endpoints_transport_check,
  add constraint endpoints_transport_check check (transport in ('http', 'telegram', 'discord', 'slack', 'email')),
  drop constraint endpoints_signing_scheme_check,
  add constraint endpoints_signing_scheme_check check (signing_scheme in ('relay', 'standard', 'stripe', 'github')),
  add column headers bytea,
  add column header_names text[] not null default '{}',
  add column header_prefix text check (length(header_prefix) between 1 and 32),
  add column signing_key bytea,
  add column public_key text,
  add column previous_signing_key bytea,
  add column previous_signing_key_expires_at timestamptz,
  -- Names without values would be shown and not sent.
  add constraint headers_have_names check ((headers is null) = (header_names = '{}')),
  -- A public key that signs nothing would have a receiver wait for signatures that never come.
  add constraint key_pair_complete check ((signing_key is null) = (public_key is null)),
  add constraint key_pair_signs check (signing_key is null or signing_scheme = 'standard'),
  add constraint previous_key_follows check (previous_signing_key is null or signing_key is not null),
  add constraint key_rotation_complete check ((previous_signing_key is null) = (previous_signing_key_expires_at is null)),
  -- A header with room for one signature is signed by one secret: a previous one would only seem to overlap.
  add constraint github_has_one_secret check (signing_scheme <> 'github' or previous_secret is null);
