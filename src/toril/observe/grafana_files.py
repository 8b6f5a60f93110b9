"""The files for Grafana and Prometheus, made from the panels.

Guarantee: a panel and its alert use the same query, so that the cause of an alert is visible in the panel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from toril.observe.grafana import PANELS, Panel

SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_QUEUE: Final = '{queue=~"$queue"}'
_COLUMNS: Final = 24  # Grafana's grid
_WIDTH: Final = 8
_HEIGHT: Final = 8


def _for_dashboard(query: str) -> str:
    return query.replace("%s", _QUEUE)


def _for_rules(query: str) -> str:
    """Returns the query for all queues, without the selection of the dashboard."""
    return query.replace("%s", "").replace(',queue=~"$queue"', "")


def dashboard() -> dict[str, Any]:
    """Returns a Grafana dashboard that can be imported."""
    return {
        "title": "toril",
        "uid": "toril",
        "tags": ["toril", "bullmq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource_choice(), _queue_choice()]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _datasource_choice() -> dict[str, object]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _queue_choice() -> dict[str, object]:
    query = 'label_values({__name__=~"bullmq_.+"}, queue)'
    return {
        "name": "queue",
        "type": "query",
        "label": "Queue",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "queues"},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _panel(number: int, panel: Panel) -> dict[str, object]:
    in_a_row = _COLUMNS // _WIDTH
    place = {"h": _HEIGHT, "w": _WIDTH, "x": number % in_a_row * _WIDTH, "y": number // in_a_row * _HEIGHT}
    targets = [
        {
            "refId": chr(ord("A") + at),
            "expr": _for_dashboard(query),
            "legendFormat": legend,
            "datasource": SOURCE,
        }
        for at, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **_thresholds(panel)}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


def _thresholds(panel: Panel) -> dict[str, object]:
    """Returns a line at the threshold of the alert on the panel's own query."""
    own = [alert for alert in panel.alerts if not alert.query]
    if not own:
        return {}
    steps: list[dict[str, object]] = [{"color": "green", "value": None}]
    steps += [{"color": "red", "value": alert.above} for alert in own]
    return {
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": {"thresholdsStyle": {"mode": "line"}},
    }


def rules() -> dict[str, Any]:
    """Returns the alert rules of Prometheus as a document."""
    return {"groups": [{"name": "toril", "rules": list(_rules())}]}


_VALUE: Final = '{{ printf "%.3g" $value }}'


def _rules() -> Iterator[dict[str, object]]:
    for panel in PANELS:
        for alert in panel.alerts:
            query = alert.query or next(iter(panel.queries.values()))
            yield {
                "alert": alert.name,
                "expr": f"({_for_rules(query)}) > {alert.above:g}",
                "for": alert.lasting,
                "labels": {"severity": alert.severity},
                "annotations": {
                    "summary": alert.summary,
                    "description": f"{panel.text} Now: {_VALUE}. What to do: {alert.remedy}.",
                },
            }


def dashboard_text() -> str:
    """Returns the dashboard as a file to import."""
    return json.dumps(dashboard(), indent=2) + "\n"


def rules_text() -> str:
    """Returns the rules as a rule file in JSON, which is valid YAML."""
    return json.dumps(rules(), indent=2) + "\n"
