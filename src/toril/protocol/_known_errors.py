"""Errors of libraries that toril does not import: class names by top-level module.

Guarantee: data only. The most specific class of an error decides, so a permanent subclass of a transient class
(a refused certificate is a connection error, too) is listed here and found first.
"""

from __future__ import annotations

_DB_TRANSIENT = frozenset({"OperationalError", "InterfaceError"})
_DB_PERMANENT = frozenset({"IntegrityError", "ProgrammingError", "DataError", "NotSupportedError"})

_HTTPX_TRANSIENT = frozenset({"TransportError", "TimeoutException", "NetworkError", "PoolTimeout"})
_HTTPX_PERMANENT = frozenset(
    {"UnsupportedProtocol", "LocalProtocolError", "InvalidURL", "DecodingError", "TooManyRedirects"}
)
_HTTPCORE_TRANSIENT = frozenset(
    {"TimeoutException", "NetworkError", "RemoteProtocolError", "ConnectionNotAvailable"}
)

TRANSIENT_NAMES: dict[str, frozenset[str]] = {
    "httpx": _HTTPX_TRANSIENT,
    "httpx2": _HTTPX_TRANSIENT,
    "httpcore": _HTTPCORE_TRANSIENT,
    "httpcore2": _HTTPCORE_TRANSIENT,
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
    "ftplib": frozenset({"error_temp"}),
    "imaplib": frozenset({"abort"}),
    "multiprocessing": frozenset({"TimeoutError"}),
    "subprocess": frozenset({"TimeoutExpired"}),
}

PERMANENT_NAMES: dict[str, frozenset[str]] = {
    "httpx": _HTTPX_PERMANENT,
    "httpx2": _HTTPX_PERMANENT,
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

# The first word of an error reply of Redis.
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

# Codes of AWS that are worth a retry, whatever the status, which is mostly 400.
AWS_TRANSIENT_CODES = frozenset(
    {
        *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "SlowDown"),
        *("RequestThrottledException", "EC2ThrottledException", "TooManyRequestsException"),
        *("RequestLimitExceeded", "BandwidthLimitExceeded", "ProvisionedThroughputExceededException"),
        *("PriorRequestNotComplete", "TransactionInProgressException"),
        *(
            "RequestTimeout",
            "RequestTimeoutException",
            "ServiceUnavailable",
            "InternalFailure",
            "InternalError",
        ),
    }
)

# Codes and types of errors in the bodies of HTTP APIs: a stream that fails later has the status 200.
API_TRANSIENT_CODES = frozenset(
    {
        *("overloaded_error", "rate_limit_error", "rate_limit_exceeded", "too_many_requests"),
        *("timeout_error", "service_unavailable", "server_error", "internal_server_error", "api_error"),
    }
)

GRPC_TRANSIENT_CODES = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED"}
)
