"""Starts the shop with its relay and a worker: `python -m examples.shop`.

SHOP_DATABASE_URL is its database, such as postgresql+psycopg://postgres@localhost/shop (default: a file of SQLite), and
TORIL_REDIS_URL its Redis or Valkey (default: the embedded server).
"""

from __future__ import annotations

import os

import uvicorn

from examples.shop.shop import create_web

if __name__ == "__main__":
    database = os.environ.get("SHOP_DATABASE_URL", "sqlite:///shop.sqlite3")
    port = int(os.environ.get("SHOP_PORT", "8000"))
    uvicorn.run(create_web(database), host="127.0.0.1", port=port, log_level="warning")
