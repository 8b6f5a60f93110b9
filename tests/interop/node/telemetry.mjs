// A tracer without a vendor: spans are kept in memory, context travels as W3C `traceparent` inside a JSON carrier.
// It fulfils the Telemetry interface that Queue and Worker accept, so a trace can be followed across languages.

import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';

const hex = (bytes) => randomBytes(bytes).toString('hex');

class Span {
  constructor(name, kind, parent, finished) {
    this.name = name;
    this.kind = kind;
    this.traceId = parent?.traceId ?? hex(16);
    this.spanId = hex(8);
    this.parentId = parent?.spanId ?? null;
    this.attributes = {};
    this.finished = finished;
  }

  setSpanOnContext(context) {
    return { ...context, span: this };
  }

  setAttribute(key, value) {
    this.attributes[key] = value;
  }

  setAttributes(attributes) {
    Object.assign(this.attributes, attributes);
  }

  addEvent() {}

  recordException(error) {
    this.attributes.exception = String(error?.message ?? error);
  }

  end() {
    const { name, kind, traceId, spanId, parentId, attributes } = this;
    this.finished.push({ name, kind, trace_id: traceId, span_id: spanId, parent_id: parentId, attributes });
  }
}

export class MemoryTelemetry {
  constructor() {
    const current = new AsyncLocalStorage();
    this.spans = [];
    this.tracer = {
      startSpan: (name, options, context) =>
        new Span(name, options?.kind ?? null, (context ?? current.getStore())?.span, this.spans),
    };
    this.contextManager = {
      with: (context, run) => current.run(context, run),
      active: () => current.getStore() ?? {},
      getMetadata: ({ span }) =>
        JSON.stringify(span ? { traceparent: `00-${span.traceId}-${span.spanId}-01` } : {}),
      fromMetadata: (context, metadata) => {
        const [, traceId, spanId] = (JSON.parse(metadata).traceparent ?? '').split('-');
        return traceId ? { ...context, span: { traceId, spanId } } : context;
      },
    };
  }
}
