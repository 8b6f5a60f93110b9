// Time is a value given by the test: once `setClock(ms)` was called, every Date of this process reads that instant.
// `setClock(null)` gives the real time back. Timers are not touched: they only decide when something is tried again.

const RealDate = Date;
let instant = null;

class SettableDate extends RealDate {
  constructor(...parts) {
    if (parts.length === 0) super(SettableDate.now());
    else super(...parts);
  }

  static now() {
    return instant === null ? RealDate.now() : instant;
  }
}

export function installClock() {
  globalThis.Date = SettableDate;
}

export function setClock(milliseconds) {
  instant = milliseconds;
}
