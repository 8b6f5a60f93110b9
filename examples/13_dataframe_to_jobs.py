"""The rows of a Spark DataFrame become jobs, each once: a second run adds nothing.

Needs Java and `pip install "toril[spark,server]"`.
"""

from __future__ import annotations

from toril import sync
from toril.spark import enqueue
from toril.spark.pipeline.session import build_session


def main() -> None:
    spark = build_session()
    users = spark.range(100).selectExpr(
        "id", "concat('user', id, '@example.org') as email", "id % 10 = 0 as gold"
    )
    jobs = users.selectExpr(
        "'welcome' as name",
        "struct(id, email) as data",
        "if(gold, 1, 10) as priority",  # 1 runs before 10
    )
    for _ in range(2):
        enqueue(jobs, "emails", run="welcome-2026-03")
    with sync.Queue("emails") as queue:
        print(queue.get_job_counts().prioritized, "jobs")
        print(min((job.data for job in queue.get_prioritized()), key=lambda data: data["id"]))
    spark.stop()


if __name__ == "__main__":
    main()

# prints:
# 100 jobs
# {'id': 0, 'email': 'user0@example.org'}
