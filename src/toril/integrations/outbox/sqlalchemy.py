"""The outbox for SQLAlchemy: its tables, how rows are written, and the store of the relay.

    outbox = SqlAlchemyOutbox(Base.metadata)              # declares its tables there: Alembic finds them

    with Session(engine) as session, session.begin():
        session.add(order)
        job_id = outbox.enqueue(session, send.bind(order.id), key=f"customer-{order.customer}")

Guarantee: a row is part of the transaction of the session. Rows get their positions when they are inserted.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from toril.app import TaskCall
from toril.integrations.outbox.rows import OutboxRow, row_of
from toril.protocol.extras import needed

with needed("sqlalchemy"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        DateTime,
        Engine,
        Index,
        Insert,
        Integer,
        MetaData,
        String,
        Table,
        Text,
        delete,
        func,
        insert,
        or_,
        select,
        update,
    )
    from sqlalchemy.exc import IntegrityError
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

_COLUMNS: Final = ("id", "queue", "name", "data", "options", "key")


class SqlAlchemyOutbox:
    """The tables of an outbox, and how calls are written to it."""

    def __init__(self, metadata: MetaData, *, name: str = "toril_outbox") -> None:
        self.rows = Table(
            name,
            metadata,
            # SQLite counts only this type.
            Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
            Column("id", String(36), nullable=False, unique=True),
            Column("queue", Text, nullable=False),
            Column("name", Text, nullable=False),
            Column("data", Text, nullable=False),
            Column("options", Text, nullable=False),
            Column("key", Text),
            Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
            Column("sent_at", DateTime(timezone=True)),
            Column("error", Text),
        )
        is_unsent = self.rows.c.sent_at.is_(None)
        Index(f"{name}_unsent", self.rows.c.position, postgresql_where=is_unsent, sqlite_where=is_unsent)
        Index(f"{name}_sent", self.rows.c.sent_at)
        self.relay = Table(
            f"{name}_relay",
            metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("outbox", String(36), nullable=False),
        )

    def insert(self, call: TaskCall, key: str | None = None) -> tuple[Insert, str]:
        """The statement that writes a call, and the id that its job will have."""
        row = row_of(call, key)
        return insert(self.rows).values({name: getattr(row, name) for name in _COLUMNS}), row.id

    def enqueue(self, session: Session | Connection, call: TaskCall, *, key: str | None = None) -> str:
        """Writes a call in the transaction of a session; returns the id that its job will have."""
        statement, job_id = self.insert(call, key)
        session.execute(statement)
        return job_id

    async def enqueue_async(
        self, session: AsyncSession | AsyncConnection, call: TaskCall, *, key: str | None = None
    ) -> str:
        """The same for sessions of asyncio."""
        statement, job_id = self.insert(call, key)
        await session.execute(statement)
        return job_id


class SqlAlchemyBatch:
    """Unsent rows in an open transaction."""

    def __init__(self, connection: Connection, table: Table, outbox: str, rows: Sequence[OutboxRow]) -> None:
        self._connection = connection
        self._table = table
        self.outbox = outbox
        self.rows = rows

    def mark_sent(self, ids: Sequence[str]) -> None:
        table = self._table
        if ids:
            sent = update(table).where(table.c.id.in_(ids)).values(sent_at=datetime.now(UTC), error=None)
            self._connection.execute(sent)

    def mark_refused(self, errors: Mapping[str, str]) -> None:
        for id, error in errors.items():
            changed = update(self._table).where(self._table.c.id == id).values(error=error)
            self._connection.execute(changed)


class SqlAlchemyStore:
    """Reads the outbox through an engine that is not an asynchronous one."""

    def __init__(self, engine: Engine, outbox: SqlAlchemyOutbox) -> None:
        self._engine = engine
        self._outbox = outbox

    @contextmanager
    def unsent(self, limit: int) -> Iterator[SqlAlchemyBatch | None]:
        """Unsent rows in the order of their positions, under the lock of the relay."""
        table = self._outbox.rows
        with self._engine.begin() as connection:
            name = self._locked_name(connection)
            if name is None:
                yield None
                return
            found = connection.execute(self._unsent_query(limit)).all()
            rows = [OutboxRow(**row._mapping) for row in found]  # its public way to a mapping
            yield SqlAlchemyBatch(connection, table, name, rows)

    def _unsent_query(self, limit: int) -> Any:
        table = self._outbox.rows
        held = select(table.c.key).where(table.c.sent_at.is_(None), table.c.error.is_not(None))
        return (
            select(*(table.c[name] for name in _COLUMNS))
            .where(
                table.c.sent_at.is_(None),
                table.c.error.is_(None),
                or_(table.c.key.is_(None), table.c.key.not_in(held.where(table.c.key.is_not(None)))),
            )
            .order_by(table.c.position)
            .limit(limit)
        )

    @contextmanager
    def expired(self, keep: float, limit: int) -> Iterator[tuple[str, Mapping[str, Sequence[str]]]]:
        """Rows that were sent long enough ago; they are deleted when the block is left."""
        table = self._outbox.rows
        with self._engine.begin() as connection:
            name = self._locked_name(connection)
            if name is None:
                yield "", {}
                return
            before = datetime.now(UTC) - timedelta(seconds=keep)
            query = select(table.c.id, table.c.queue).where(table.c.sent_at < before).limit(limit)
            by_queue: dict[str, list[str]] = {}
            for id, queue in connection.execute(query):
                by_queue.setdefault(queue, []).append(id)
            yield name, by_queue
            ids = [id for one in by_queue.values() for id in one]
            if ids:
                connection.execute(delete(table).where(table.c.id.in_(ids)))

    def _locked_name(self, connection: Connection) -> str | None:
        """The name of the outbox, whose row is locked until the transaction ends; None if another relay has it."""
        table = self._outbox.relay
        query = select(table.c.outbox).where(table.c.id == 1)
        found: str | None = connection.execute(query.with_for_update(skip_locked=True)).scalar()
        if found is not None or connection.execute(query).scalar() is not None:
            return found
        try:
            with connection.begin_nested():
                connection.execute(insert(table).values(id=1, outbox=str(uuid.uuid4())))
        except IntegrityError:
            return None  # another relay has just made it
        return str(connection.execute(query).scalar_one())
