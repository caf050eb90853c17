"""Run many cases, each in a process of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from openai_kv.simulate.result import Case, Result
from openai_kv.simulate.run_case import PolicySource, run_case


def run_cases(cases: Sequence[Case], source: PolicySource, jobs: int, done: Callable[[], None]) -> list[Result]:
    """Results in the order of `cases`, `jobs` at once; `done` is called after each. The first error ends it."""
    if jobs == 1 or len(cases) == 1:
        return [run_one(case, source, done) for case in cases]
    with ProcessPoolExecutor(min(jobs, len(cases)), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_case, case, source) for case in cases]
        try:
            for future in as_completed(futures):
                future.result()
                done()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def run_one(case: Case, source: PolicySource, done: Callable[[], None]) -> Result:
    result = run_case(case, source)
    done()
    return result
