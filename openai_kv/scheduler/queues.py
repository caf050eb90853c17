"""RequestQueues: who waits and who runs, both in order of `Request.order`, and who has just ended."""

from sortedcontainers import SortedKeyList

from openai_kv.request import FinishReason, Request, RequestStatus


class RequestQueues:
    """A request is in one of the two from `add` to `end`; the last of the running is the first to make way."""

    def __init__(self) -> None:
        self.waiting: SortedKeyList[Request, tuple[int, float]] = SortedKeyList(key=lambda request: request.order)
        self.running: SortedKeyList[Request, tuple[int, float]] = SortedKeyList(key=lambda request: request.order)
        self.by_id: dict[str, Request] = {}
        self.ended: list[Request] = []  # since the last schedule()

    def add(self, request: Request) -> None:
        assert request.request_id not in self.by_id, f"request {request.request_id} was added twice"
        self.by_id[request.request_id] = request
        self.waiting.add(request)

    def start(self, request: Request) -> None:
        self.waiting.remove(request)
        self.running.add(request)
        request.status = RequestStatus.RUNNING

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.waiting.add(request)
        request.status = RequestStatus.PREEMPTED

    def end(self, request: Request, reason: FinishReason) -> None:
        (self.running if request.status is RequestStatus.RUNNING else self.waiting).remove(request)
        del self.by_id[request.request_id]
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self.ended.append(request)
