"""The CUDA device against recording stand-ins of CuPy and torch.cuda; no card is involved."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from coded_device import CodedDevice
from paged_cases import Paged, bits, fill, run
from recording_driver import Recorder, RecordingCupy, RecordingTorch

from pagetrail.kernels.abi import KernelInputError, SlabSpec, Storage
from pagetrail.kernels.compiler import COMPILERS
from pagetrail.kernels.cuda.codes import Code, CodedSlab
from pagetrail.kernels.cuda_device import CudaDevice, CudaOptions
from pagetrail.kernels.cuda_runtime import CudaRuntime, CudaUnavailableError
from pagetrail.kernels.device import AttentionSpec, PagePool
from pagetrail.kernels.emulator.device import EmulatedDevice
from pagetrail.kernels.emulator.library import HostLauncher
from pagetrail.kernels.plan import Capacity, Cut, SequenceRows, plan

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="the emulator needs a C++ compiler"
)

SMALL = CudaOptions(
    batch_bytes_max=1 << 16, partial_values_max=1 << 18, pinned_buffers=2, pinned_bytes=1 << 16
)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def device(recorder: Recorder) -> CudaDevice:
    return made(recorder)


def made(
    recorder: Recorder, options: CudaOptions = SMALL, capability: tuple[int, int] = (9, 0)
) -> CudaDevice:
    cupy, fake = RecordingCupy(recorder), RecordingTorch(recorder, capability)
    return CudaDevice(CudaRuntime(cupy, fake, compiled=recorder.compiled), options)


def pool_bits(pool: PagePool) -> np.ndarray:
    return pool.array.view(torch.int16).numpy()


def test_a_step_with_host_arrays_gives_the_bits_of_the_kernels(device: CudaDevice) -> None:
    case = Paged(((1, 300), (5, 37), (0, 0), (1, 1)), split=True, rows_per_item=1)
    assert bits(run(case, device)) == bits(run(case, EmulatedDevice(HostLauncher())))


def test_shared_memory_past_the_default_is_asked_for_before_the_first_launch(
    device: CudaDevice, recorder: Recorder
) -> None:
    run(Paged(((1, 20),), kv_heads=1), device)
    names = [call[:2] for call in recorder.calls if call[0] in ("shared", "launch")]
    at = names.index(("launch", "gqa_mma_f16_d64"))
    assert ("shared", "gqa_mma_f16_d64") in names[:at]


def test_a_captured_step_replays_what_was_staged_last(
    device: CudaDevice, recorder: Recorder
) -> None:
    """Captured with a short sequence, replayed with one that is split over spans."""
    capacity = Capacity(sequences=2, rows=2, page_entries=64, items=16)
    pool = device.allocate(SlabSpec("k", 1, 1, 64, Storage.F16), 40, 16)
    rng = np.random.default_rng(0)
    table = rng.permutation(40)[:38].astype(np.int32)
    at = np.arange(600)
    rows = rng.standard_normal((600, 64)).astype(np.float32)
    device.append(pool, 0, rows, table[at // 16].astype(np.int64) * 16 + at % 16)

    def planned(length: int, capacity: Capacity | None) -> object:
        sequences = [SequenceRows(1, length, table)]
        return plan(sequences, 16, cut=Cut(1, True), capacity=capacity)

    q = torch.from_numpy(rng.standard_normal((2, 128)).astype(np.float32))
    out, what = torch.full((2, 128), float("nan")), AttentionSpec(2, 0.125)
    short = planned(3, capacity)
    device.stage(short)
    graph = device.capture(lambda: device.attention(what, 0, q, [pool], pool, short, out))
    first_capture = recorder.calls.index(("capture", "compute"))
    assert ("synchronize", "compute") in recorder.calls[:first_capture]
    for length in (3, 600, 257):
        device.stage(planned(length, capacity))
        out.fill_(float("nan"))
        graph.replay()
        eager = np.zeros((1, 128), np.float32)
        device.attention(what, 0, q[:1].numpy(), [pool], pool, planned(length, None), eager)
        device.stage(short)
        assert out[0].numpy().tobytes() == eager[0].tobytes(), length


def test_a_batch_is_never_written_into_a_buffer_the_card_may_read(
    device: CudaDevice, recorder: Recorder
) -> None:
    batch = plan([SequenceRows(1, 3, np.array([0], np.int32))], 16)
    recorder.calls.clear()
    for _ in range(5):
        device.stage(batch)
    waits = [call for call in recorder.calls if call[0] == "event_synchronize"]
    assert len(waits) == 3  # the ring has two buffers


def test_a_transfer_waits_for_compute_and_compute_waits_for_a_restore(
    device: CudaDevice, recorder: Recorder
) -> None:
    spec = SlabSpec("k", 2, 1, 64, Storage.F16)
    pool, other = device.allocate(spec, 4, 4), device.allocate(spec, 4, 4)
    pool.array.copy_(torch.randn(pool.array.shape))
    recorder.calls.clear()
    table = np.array([2, 0, 3], np.int32)
    packed = device.gather(pool, table, 3, 10)
    assert [call for call in recorder.calls if call[0] in ("wait_event", "launch")] == [
        ("wait_event", "transfer", "compute"),
        ("launch", "page_gather", "transfer"),
    ]
    recorder.calls.clear()
    device.scatter(other, table, 3, 10, packed)
    assert [call for call in recorder.calls if call[0] in ("wait_event", "launch")] == [
        ("wait_event", "transfer", "compute"),
        ("launch", "page_scatter", "transfer"),
        ("wait_event", "compute", "transfer"),
    ]
    rows = pool_bits(pool)[:, table].reshape(2, 12, 64)
    assert (pool_bits(other)[:, table].reshape(2, 12, 64)[:, 3:10] == rows[:, 3:10]).all()


def test_pinned_buffers_are_bounded_and_come_back(device: CudaDevice) -> None:
    pool = device.allocate(SlabSpec("k", 1, 1, 64, Storage.F16), 4, 4)
    table = np.arange(4, dtype=np.int32)
    transfers = [device.begin_gather(pool, table, 0, 4) for _ in range(2)]
    assert device.begin_gather(pool, table, 0, 4) is None
    transfers[0].release()
    again = device.begin_gather(pool, table, 0, 4)
    assert again is not None
    again.release()
    with pytest.raises(KernelInputError, match="given back twice"):
        again.release()
    big = device.allocate(SlabSpec("k", 1, 8, 256, Storage.F16), 4, 64)
    with pytest.raises(KernelInputError, match="do not fit a pinned buffer"):
        device.begin_gather(big, table, 0, 256)


def test_transfers_have_a_stream_of_the_lowest_priority(
    device: CudaDevice, recorder: Recorder
) -> None:
    del device
    streams = [call for call in recorder.calls if call[0] == "stream"]
    assert streams == [("stream", "compute", "-1"), ("stream", "transfer", "0")]


def test_a_transfer_is_done_when_its_event_is_and_not_before(
    device: CudaDevice, recorder: Recorder
) -> None:
    pool = device.allocate(SlabSpec("k", 1, 1, 64, Storage.F16), 4, 4)
    recorder.events_complete = False
    transfer = device.begin_gather(pool, np.arange(4, dtype=np.int32), 0, 4)
    assert transfer is not None
    recorder.calls.clear()
    assert not transfer.done()
    assert recorder.calls == [("event_query", "transfer")]  # it did not wait
    transfer.wait()
    assert transfer.done()


def test_memory_is_taken_at_construction_and_never_by_a_step(
    device: CudaDevice, recorder: Recorder
) -> None:
    pinned = [call for call in recorder.calls if call == ("memory", "pinned")]
    assert len(pinned) == SMALL.batch_places * SMALL.batch_ring + SMALL.pinned_buffers
    filled = fill(Paged(((1, 40),), split=True, rows_per_item=1), device)
    recorder.calls.clear()
    filled.run()
    assert not [call for call in recorder.calls if call[0] == "memory"]


def test_rows_past_a_pinned_buffer_move_in_pieces(recorder: Recorder) -> None:
    small = replace(SMALL, pinned_bytes=1_000)  # three rows of two layers of 128 bytes
    device = made(recorder, small)
    spec = SlabSpec("k", 2, 1, 64, Storage.F16)
    pool, other = device.allocate(spec, 4, 4), device.allocate(spec, 4, 4)
    pool.array.copy_(torch.randn(pool.array.shape))
    table = np.array([2, 0, 3], np.int32)
    packed = device.gather(pool, table, 1, 12)
    rows = pool_bits(pool)[:, table].reshape(2, 12, 64)
    assert packed.tobytes() == rows[:, 1:].tobytes()
    device.scatter(other, table, 1, 12, packed)
    assert (pool_bits(other)[:, table].reshape(2, 12, 64)[:, 1:] == rows[:, 1:]).all()
    gathers = [call for call in recorder.calls if call[:2] == ("launch", "page_gather")]
    assert len(gathers) == 4


def test_what_waits_for_the_card_is_refused_in_a_capture(device: CudaDevice) -> None:
    x = torch.ones(3)
    for step in (
        lambda: x.sum().item(),
        lambda: x.nonzero(),
        lambda: device.allocate(SlabSpec("k", 1, 1, 64, Storage.F16), 1, 16),
        device.check_errors,
    ):
        with pytest.raises(RuntimeError, match="captured"):
            device.capture(step)


@pytest.mark.parametrize("code", list(Code))
def test_coded_pages_give_the_bits_of_the_kernels(device: CudaDevice, code: Code) -> None:
    case = Paged(((1, 300), (5, 37), (0, 0), (1, 1)), split=True, rows_per_item=1)
    emulated = CodedDevice(EmulatedDevice(HostLauncher()), code)
    assert bits(run(case, CodedDevice(device, code))) == bits(run(case, emulated))


def test_coded_pages_are_copied_and_moved_with_their_scales(device: CudaDevice) -> None:
    slab = CodedSlab("k", 2, 1, 64, Code.I8)
    pool, other = (device.allocate_coded(slab, 4, 4) for _ in range(2))
    pool.codes.random_(0, 256)
    pool.scales.normal_()
    device.page_copy(pool, 0, 2)
    for array in (pool.codes, pool.scales):
        assert (array[:, 2] == array[:, 0]).all()
    table = np.array([3, 0], np.int32)
    packed = device.gather(pool, table, 1, 7)
    device.scatter(other, table, 1, 7, packed)
    for mine, theirs in ((pool.codes, other.codes), (pool.scales, other.scales)):
        moved = [array[:, table].reshape(2, 8, -1) for array in (mine, theirs)]
        assert (moved[0][:, 1:7] == moved[1][:, 1:7]).all()
        assert not moved[1][:, [0, 7]].any()


def test_an_older_cupy_launches_on_the_same_streams(recorder: Recorder) -> None:
    cupy, fake = RecordingCupy(recorder, older=True), RecordingTorch(recorder)
    device = CudaDevice(CudaRuntime(cupy, fake, compiled=recorder.compiled), SMALL)
    pool = device.allocate(SlabSpec("k", 1, 1, 64, Storage.F16), 4, 4)
    device.append(pool, 0, np.ones((1, 64), np.float32), np.array([3], np.int64))
    device.gather(pool, np.arange(4, dtype=np.int32), 0, 4)
    launches = [call[1:] for call in recorder.calls if call[0] == "launch"]
    assert launches == [("kv_append_f16", "compute"), ("page_gather", "transfer")]


def test_the_names_of_cupy_that_are_used_are_there() -> None:
    """The same for builds of CUDA 12 and 13; a module is loaded only when it is first used."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    module = cupy.RawModule(path="not-there.cubin")
    assert callable(module.get_function)
    assert hasattr(cupy.RawKernel, "max_dynamic_shared_size_bytes")
    assert hasattr(cupy.cuda.Stream, "from_external") or hasattr(cupy.cuda, "ExternalStream")


def test_a_slot_past_the_pool_raises_when_errors_are_checked(device: CudaDevice) -> None:
    pool = device.allocate(SlabSpec("k", 1, 1, 64, Storage.F16), 2, 4)
    device.append(pool, 0, torch.ones(1, 64), torch.tensor([8]))
    with pytest.raises(KernelInputError, match="a slot lay past its pool"):
        device.check_errors()
    device.check_errors()


def test_a_page_is_copied_and_poisoned(device: CudaDevice) -> None:
    pool = device.allocate(SlabSpec("k", 2, 1, 64, Storage.BF16), 3, 4)
    pool.array.copy_(torch.randn(pool.array.shape))
    device.page_copy(pool, 0, 2)
    assert (pool_bits(pool)[:, 2] == pool_bits(pool)[:, 0]).all()
    device.poison(pool, np.array([1], np.int32))
    assert pool.array[:, 1].isnan().all()
    assert not pool.array[:, 0].isnan().any()


def test_a_batch_past_its_place_is_refused(recorder: Recorder) -> None:
    device = made(recorder, CudaOptions(batch_bytes_max=64, partial_values_max=64, pinned_bytes=64))
    batch = plan([SequenceRows(1, 3, np.array([0], np.int32))], 16)
    with pytest.raises(KernelInputError, match="there is room for 64"):
        device.stage(batch)


def test_split_rows_past_their_room_are_refused(recorder: Recorder) -> None:
    device = made(
        recorder, CudaOptions(batch_bytes_max=4096, partial_values_max=64, pinned_bytes=64)
    )
    with pytest.raises(KernelInputError, match="partial values"):
        fill(Paged(((1, 600),), split=True, rows_per_item=1), device).run()


def test_without_a_card_the_reason_is_said() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    with pytest.raises(CudaUnavailableError, match=r"not installed|sees no card"):
        CudaRuntime.open()


def test_mla_runs_through_the_same_calls(device: CudaDevice) -> None:
    case = Paged(((1, 300), (2, 20)), kv_heads=1, group=4, rotary=16)
    assert bits(run(case, device)) == bits(run(case, EmulatedDevice(HostLauncher())))


def test_a_card_of_another_kind_is_refused(recorder: Recorder) -> None:
    with pytest.raises(CudaUnavailableError, match="the card is sm_75"):
        made(recorder, capability=(7, 5))


def test_a_kernel_that_the_card_has_no_shared_memory_for_is_refused(recorder: Recorder) -> None:
    device = made(recorder, capability=(8, 0))
    case = Paged(((1, 20),), kv_heads=1, group=16, width=512, rotary=64)
    with pytest.raises(KernelInputError, match="bytes of shared memory a block, sm_80 has"):
        run(case, device)
