"""What is known about errors of libraries that toril never imports: class names by top-level module.

Guarantee: data only. The most specific class of an error decides, so a permanent subclass of a transient class
(a refused certificate is a connection error, too) is written down here and found first.
"""

from __future__ import annotations

_DB_TRANSIENT = frozenset({"OperationalError", "InterfaceError"})
_DB_PERMANENT = frozenset({"IntegrityError", "ProgrammingError", "DataError", "NotSupportedError"})

TRANSIENT_NAMES: dict[str, frozenset[str]] = {
    "httpx": frozenset({"TransportError", "TimeoutException", "NetworkError", "PoolTimeout"}),
    "httpcore": frozenset(
        {"TimeoutException", "NetworkError", "RemoteProtocolError", "ConnectionNotAvailable"}
    ),
    "requests": frozenset({"ConnectionError", "Timeout", "ChunkedEncodingError", "RetryError"}),
    "urllib3": frozenset(
        {"TimeoutError", "ProtocolError", "PoolError", "NewConnectionError", "MaxRetryError"}
    ),
    "aiohttp": frozenset({"ClientConnectionError", "ClientPayloadError", "ServerTimeoutError"}),
    "http": frozenset({"IncompleteRead", "BadStatusLine", "RemoteDisconnected"}),
    "websockets": frozenset({"ConnectionClosed"}),
    "redis": frozenset(
        {
            *("ConnectionError", "TimeoutError", "BusyLoadingError", "ReadOnlyError", "OutOfMemoryError"),
            *("WatchError", "ClusterDownError", "MasterDownError", "TryAgainError", "AskError", "MovedError"),
            *("MaxConnectionsError", "ClusterError", "MasterNotFoundError", "SlaveNotFoundError"),
        }
    ),
    "valkey": frozenset(
        {
            *("ConnectionError", "TimeoutError", "BusyLoadingError", "ReadOnlyError", "OutOfMemoryError"),
            *("WatchError", "ClusterDownError", "MasterDownError", "TryAgainError", "AskError", "MovedError"),
        }
    ),
    "sqlalchemy": _DB_TRANSIENT | {"DisconnectionError", "TimeoutError"},
    "django": _DB_TRANSIENT,
    "psycopg": _DB_TRANSIENT,
    "psycopg_pool": frozenset({"PoolTimeout", "TooManyRequests"}),
    "psycopg2": _DB_TRANSIENT,
    "pymysql": _DB_TRANSIENT,
    "MySQLdb": _DB_TRANSIENT,
    "mysql": _DB_TRANSIENT,
    "asyncpg": frozenset({"InterfaceError", "PostgresConnectionError", "ConnectionDoesNotExistError"}),
    "pymongo": frozenset({"ConnectionFailure", "ExecutionTimeout", "WTimeoutError"}),
    "pika": frozenset({"AMQPConnectionError", "AMQPHeartbeatTimeout", "ConnectionClosed"}),
    "aio_pika": frozenset({"AMQPConnectionError"}),
    "botocore": frozenset({"HTTPClientError", "ConnectionError", "EndpointConnectionError"}),
    "google": frozenset({"RetryError", "TransportError"}),
    "playwright": frozenset({"TimeoutError"}),
    "smtplib": frozenset({"SMTPServerDisconnected", "SMTPConnectError"}),
}

PERMANENT_NAMES: dict[str, frozenset[str]] = {
    "httpx": frozenset(
        {"UnsupportedProtocol", "LocalProtocolError", "InvalidURL", "DecodingError", "TooManyRedirects"}
    ),
    "requests": frozenset(
        {
            *("SSLError", "InvalidURL", "MissingSchema", "InvalidSchema", "InvalidHeader"),
            *("TooManyRedirects", "JSONDecodeError", "ContentDecodingError"),
        }
    ),
    "urllib3": frozenset({"LocationValueError", "SSLError", "DecodeError"}),
    "aiohttp": frozenset(
        {"ClientConnectorCertificateError", "InvalidURL", "ContentTypeError", "TooManyRedirects"}
    ),
    "redis": frozenset(
        {
            *("AuthenticationError", "AuthorizationError", "AuthenticationWrongNumberOfArgsError"),
            *("NoPermissionError", "ClusterCrossSlotError", "CrossSlotTransactionError", "DataError"),
        }
    ),
    "valkey": frozenset(
        {
            "AuthenticationError",
            "AuthorizationError",
            "NoPermissionError",
            "ClusterCrossSlotError",
            "DataError",
        }
    ),
    "sqlite3": _DB_PERMANENT,
    "sqlalchemy": _DB_PERMANENT | {"ArgumentError", "NoResultFound", "MultipleResultsFound"},
    "django": _DB_PERMANENT | {"ValidationError", "ObjectDoesNotExist"},
    "psycopg": _DB_PERMANENT,
    "psycopg2": _DB_PERMANENT,
    "pymysql": _DB_PERMANENT,
    "MySQLdb": _DB_PERMANENT,
    "mysql": _DB_PERMANENT,
    "pymongo": frozenset({"DuplicateKeyError", "InvalidURI", "ConfigurationError", "DocumentTooLarge"}),
    "botocore": frozenset({"NoCredentialsError", "ParamValidationError", "SSLError"}),
    "pydantic": frozenset({"ValidationError"}),
    "pydantic_core": frozenset({"ValidationError"}),
    "jsonschema": frozenset({"ValidationError", "SchemaError"}),
    "marshmallow": frozenset({"ValidationError"}),
    "attr": frozenset({"AttrsAttributeNotFoundError"}),
    "smtplib": frozenset({"SMTPAuthenticationError", "SMTPRecipientsRefused"}),
}

# The first word of an error of Redis.
REDIS_PREFIXES: dict[str, str] = {
    "LOADING": "transient",
    "READONLY": "transient",
    "MASTERDOWN": "transient",
    "CLUSTERDOWN": "transient",
    "TRYAGAIN": "transient",
    "MOVED": "transient",
    "ASK": "transient",
    "BUSY": "transient",
    "OOM": "transient",
    "NOREPLICAS": "transient",
    "UNBLOCKED": "transient",
    "CROSSSLOT": "permanent",
    "NOAUTH": "permanent",
    "WRONGPASS": "permanent",
    "NOPERM": "permanent",
    "WRONGTYPE": "permanent",
}

# What AWS calls "slow down" while it answers 400.
THROTTLING_CODES = frozenset(
    {
        *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "SlowDown"),
        *("RequestLimitExceeded", "TooManyRequestsException", "ProvisionedThroughputExceededException"),
        *("BandwidthLimitExceeded", "PriorRequestNotComplete", "TransactionInProgressException"),
    }
)
