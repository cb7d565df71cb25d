-- Which endpoint an email message goes by.
--
-- A message names no endpoint where its tenant has one for email: each such message asks for it. A tenant may have ten thousand other
-- endpoints, which the question must not pass through.

create index endpoints_email on relay.endpoints (tenant_id, id) where transport = 'email' and deleted_at is null;
