"""Several processes that work as one, as `accelerate launch` or torchrun start them.

What keeps them together: all come to the same meetings in the same order. One that fails on its way comes to its next
meeting with the error, which is then raised in all; so nobody waits for a process that is gone, and all end alike.

Outside such a launch everything here is that of a single process, and torch is not imported.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from indelible.errors import ConfigError, UserError

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""How long a process waits for the others. Long, since one may compute for hours before it has anything to say; a
process that died is noticed by its closed connection, not by this."""


@dataclass
class _Standing:
    """Of this process among the others: `met` them ever, knows of an error that all know of, cannot reach them."""

    met: bool = False
    told: bool = False
    cut_off: bool = False


_standing = _Standing()


def n_processes() -> int:
    """How many processes there are. Launchers set LOCAL_RANK; WORLD_SIZE alone may be a cluster's count of machines."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1


def process_index() -> int:
    """Which of them this is, from 0."""
    return int(os.environ.get("RANK", "0")) if n_processes() > 1 else 0


def local_index() -> int:
    """Which of those on this machine this is, from 0."""
    return int(os.environ["LOCAL_RANK"]) if n_processes() > 1 else 0


def is_main() -> bool:
    """Whether this process writes what all of them found."""
    return process_index() == 0


def speaks() -> bool:
    """Whether this process prints: the main one does, and any that can no longer reach it."""
    return is_main() or _standing.cut_off


@cache
def state() -> Any:
    """accelerate's view of the launch; the first call opens the process group and waits for all processes.

    Over gloo also where there are GPUs: what is exchanged are answers, small arrays in main memory, and unlike NCCL
    gloo notices at once that a process died.
    """
    import torch
    from accelerate import PartialState  # type: ignore[import-untyped]

    if torch.cuda.is_available():  # so that "cuda" means this process's own GPU; a launcher may show it just that one
        torch.cuda.set_device(local_index() % torch.cuda.device_count())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="OMP_NUM_THREADS", category=UserWarning)
        opened = PartialState(cpu=True, backend="gloo", timeout=PATIENCE)
    _standing.met = True
    return opened


def meet(part: T, error: BaseException | None = None) -> tuple[list[T | None], BaseException | None]:
    """Wait for all processes.

    Args:
        part: what this process brings; it must pickle.
        error: why this process cannot go on.

    Returns:
        every process's part in their order, None for one that failed without one; and this process's own error, else
        the first of another.

    Raises:
        UserError: another process is gone.
    """
    if n_processes() == 1:
        return [part], error
    came = _exchange((part, None if error is None else _portable(error)))
    first = error or next((e for _, e in came if e is not None), None)
    _standing.told = _standing.told or first is not None
    if isinstance(first, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a launcher repeats it to processes that are ending already
    return [p for p, _ in came], first


def gather(part: T) -> list[T]:
    """Every process's part, in order of processes, for all of them; an error of one is raised in all."""
    parts, error = meet(part)
    if error is not None:
        raise error
    return [p for p in parts if p is not None]


def from_main(make: Callable[[], T]) -> T:
    """What the main process makes, for all; its error is raised in all. The others wait meanwhile."""
    if n_processes() == 1:
        return make()
    made, error = _attempt(make if is_main() else None)
    with undisturbed():  # nobody leaves between the two
        _, error = meet(None, error)
        if error is not None:
            raise error
        sent: T = _broadcast(made)
    return sent


def first_on_each_machine(do: Callable[[], object]) -> None:
    """One process on each machine does it, the others wait. Nothing happens where there is one process only: this is
    for filling caches that several would fill at the same time."""
    if n_processes() > 1:
        _, error = meet(None, _attempt(do if local_index() == 0 else None)[1])
        if error is not None:
            raise error


def agree(value: object, what: str) -> None:
    """Check that a value is the same in all processes.

    Raises:
        ConfigError: it is not; in all of them.
    """
    values = gather(value)
    for i, other in enumerate(values):
        if other != values[0]:
            raise ConfigError(
                f"process {i} has other {what} than process 0: give all machines the same files and flags"
            )


def sum_over_processes(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all processes, in place; an error of one process is raised in all."""
    if n_processes() == 1:
        return
    from torch.distributed import all_reduce

    with undisturbed():
        gather(True)  # tensors have no place for an error: they are sent once it is known that all have some
        for tensor in tensors:
            with _connected():
                all_reduce(tensor, group=_gpu_group() if tensor.is_cuda else None)


@cache
def _gpu_group() -> Any:
    from torch.distributed import new_group

    return new_group(backend="nccl")


def alone(command: str) -> None:
    """Refuse to run in several processes.

    Raises:
        ConfigError: there are several.
    """
    if n_processes() > 1:
        raise ConfigError(f"`indelible {command}` works in one process: start it without accelerate or torchrun")


@contextmanager
def as_one() -> Iterator[None]:
    """An error inside the block, wherever between two meetings it occurs, is raised in all processes."""
    try:
        yield
    except BaseException as error:
        if n_processes() > 1 and not _standing.told and not _standing.cut_off:
            with suppress(UserError):  # nobody is left to be told
                meet(None, error)
        raise


def save_when_stopped() -> None:
    """Let SIGTERM do what Ctrl-C does: launchers send it when another process died, clusters before they take a machine
    back, and in both cases there is time to keep what was computed."""
    if n_processes() > 1 and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def leave(code: int) -> None:
    """The last meeting, after which a process that has met others exits with `code`; one that never did returns.

    Launchers end all processes when the first one fails, so nobody goes before the main one has spoken. And they go
    without the interpreter's own ending, in which threads of the process group may abort it when all is done.
    """
    if not _standing.met:
        return
    if not _standing.cut_off:
        with suppress(UserError, KeyboardInterrupt):
            meet(None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C takes effect at the block's end: a process that left a meeting half-way would confuse the next one."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # inside another such block, for one
    ):
        yield
        return
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def _attempt(do: Callable[[], T] | None) -> tuple[T | None, BaseException | None]:
    """What it gave, or its error."""
    try:
        state()  # opened first: others may wait for a group no longer than its default timeout
        return (None if do is None else do()), None
    except BaseException as error:  # noqa: BLE001 - taken to the next meeting and raised there
        return None, error


def _exchange(thing: T) -> list[T]:
    from accelerate.utils import gather_object  # type: ignore[import-untyped]

    with _connected():
        came: list[T] = gather_object([thing])
    return came


def _broadcast(made: Any) -> Any:
    from accelerate.utils import broadcast_object_list

    with _connected():
        return broadcast_object_list([made])[0]


@contextmanager
def _connected() -> Iterator[None]:
    with undisturbed():
        try:
            state()
            yield
        except RuntimeError as error:  # what torch.distributed raises when a connection closes
            _standing.cut_off = True
            why = (str(error).splitlines() or [""])[0]
            raise UserError(
                f"process {process_index()} lost another one, which was killed or did not start; what was computed "
                f"up to the last half-minute is kept, so run the same command again ({why[:120]})"
            ) from error


def _portable(error: BaseException) -> BaseException:
    """A copy that can be sent, with its traceback as a note."""
    try:
        copy: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301 - written a moment ago
    except Exception:  # noqa: BLE001 - exceptions may fail to pickle in any way
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    lines = "".join(traceback.format_exception(error))
    copy.add_note(f"raised in process {process_index()}:\n{lines}")
    return copy
