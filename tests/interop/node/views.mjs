// How a Job, an error and a flow are told to the other language: plain values, one spelling.

export function viewOfJob(job) {
  if (!job) return null;
  return {
    id: job.id,
    name: job.name,
    data: job.data,
    opts: job.opts,
    token: job.token ?? null,
    progress: job.progress,
    priority: job.priority,
    delay: job.delay ?? 0,
    timestamp: job.timestamp,
    processed_on: job.processedOn ?? null,
    finished_on: job.finishedOn ?? null,
    processed_by: job.processedBy ?? null,
    attempts_made: job.attemptsMade,
    attempts_started: job.attemptsStarted,
    stalled_count: job.stalledCounter,
    failed_reason: job.failedReason ?? null,
    deferred_failure: job.deferredFailure ?? null,
    stacktrace: job.stacktrace ?? [],
    returnvalue: job.returnvalue ?? null,
    parent_key: job.parentKey ?? null,
    repeat_job_key: job.repeatJobKey ?? null,
    deduplication_id: job.deduplicationId ?? null,
  };
}

// What an attempt has changed in a job, as listeners see it. Stacks differ by language: their number counts.
export function viewOfEnd(what, job) {
  return {
    id: job.id,
    attempts_made: job.attemptsMade,
    returnvalue: (what === 'completed' && job.returnvalue) || null, // a refused finish leaves its value in the object
    failed_reason: job.failedReason || null, // a job that is read from Redis has none where an empty one is stored
    finished_on: job.finishedOn ?? null,
    delay: job.delay ?? 0,
    traces: (job.stacktrace ?? []).length,
  };
}

export function viewOfError(error) {
  return { name: error?.name ?? 'Error', message: String(error?.message ?? error), code: error?.code ?? null };
}

export function viewOfFlow(node) {
  return { id: node.job.id, queue: node.job.queueName, children: (node.children ?? []).map(viewOfFlow) };
}

// An error as the test describes it, its stack given by the test so that both languages store the same text.
export function errorOf({ name = 'Error', message, stack }) {
  const error = new Error(message);
  error.name = name;
  error.stack = stack ?? `${name}: ${message}`;
  return error;
}
