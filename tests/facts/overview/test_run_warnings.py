import msgspec
from msgspec.structs import replace

from efprof.artifacts.events import EVENTS_FILE, WHOLE_RECORDING, CollectorStopped, OtherThreadTrained, ThreadsReady
from efprof.commands.report import analyse
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.overview.measurements import measurements_of
from efprof.facts.overview.run_warnings import warnings_of
from efprof.facts.run.run import open_run
from efprof.report.text_forms import render_text
from tests.facts.allocator.recording import Recording
from tests.support.builders import GPU, make_steps, write_run


def test_a_whole_run_has_no_warning_and_one_without_a_step_exactly_one(tmp_path):
    assert warnings_of(write_run(tmp_path / "run", steps=make_steps(5))) == ()
    (warning,) = warnings_of(write_run(tmp_path / "second", ended="killed"))
    assert "No training step was finished" in warning


def test_lines_lost_and_collectors_stopped_are_told_with_the_rank(tmp_path):
    stopped = CollectorStopped(at_ns=0, step=3, collector="windows", reason="OSError: no space left")
    run = write_run(tmp_path / "run", steps=make_steps(5), events=[stopped])
    with (run.rank_folder / "steps.jsonl").open("a") as file:
        file.write('{"step"')
    collector, torn = warnings_of(run)
    assert torn.startswith("1 line of steps.jsonl")
    assert "'windows' stopped at step 3 (OSError: no space left)" in collector
    run = write_run(tmp_path / "second", steps=make_steps(5))
    stopped = CollectorStopped(at_ns=0, step=-1, collector="numbers", reason="KeyError: 'loss'")
    (run.folder / "rank1").mkdir()
    (run.folder / "rank1" / EVENTS_FILE).write_bytes(msgspec.json.encode(stopped) + b"\n")
    (warning,) = warnings_of(open_run(run.folder))
    assert warning == "In rank1: The collector 'numbers' stopped (KeyError: 'loss'); training went on without it."


def test_other_programs_are_told_first_where_they_held_cores_and_left_few_over(tmp_path):
    stopped = CollectorStopped(at_ns=0, step=3, collector="windows", reason="OSError: no space left")
    counted = ThreadsReady(
        step=10, cores="0f3a [0, 1]", num_cores=2, num_threads=1, site=None, ready=1.0, waiting=0.5, children=0.0,
        busy=1.0, own=0.52,
    )  # fmt: skip
    run = write_run(tmp_path / "run", steps=make_steps(20), events=[stopped, counted])
    first = "Other programs held 48 % of the cores while this ran: times may be longer than alone."
    assert warnings_of(run)[0] == first
    assert first in render_text(analyse(run.folder))
    for number, quiet in enumerate((replace(counted, busy=0.7, own=0.2), replace(counted, own=0.95))):
        assert warnings_of(write_run(tmp_path / f"{number}", steps=make_steps(20), events=[quiet])) == ()


def test_a_containers_limit_is_told_where_it_held_the_program_back(tmp_path):
    counted = ThreadsReady(
        step=10, cores="0f3a [0, 1]", num_cores=1, num_threads=1, site=None, ready=1.0, waiting=0.5, children=0.0,
        busy=0.3, own=0.3, throttled_periods=0.6,
    )  # fmt: skip
    (told,) = warnings_of(write_run(tmp_path / "run", steps=make_steps(20), events=[counted]))
    assert told == "The container's limit of CPU time held this program back in 60 % of the limit's periods."
    quiet = replace(counted, throttled_periods=0.05)
    assert warnings_of(write_run(tmp_path / "quiet", steps=make_steps(20), events=[quiet])) == ()


def test_a_second_training_in_the_process_is_told_of_once(tmp_path):
    events = [OtherThreadTrained(at_ns=0, step=0, num_updates=count) for count in (None, 80)]
    (warning,) = warnings_of(write_run(tmp_path / "run", steps=make_steps(5), events=events))
    assert warning.startswith("Another thread of this process updated parameters too, while")


def test_a_recording_that_broke_off_or_cannot_be_read_says_where_and_why(tmp_path):
    stopped = CollectorStopped(at_ns=0, step=6, collector=WHOLE_RECORDING, reason="No space left on device")
    (warning,) = warnings_of(write_run(tmp_path / "run", steps=make_steps(6), events=[stopped]))
    assert warning.startswith("Recording stopped at step 6 (No space left on device); training went on")
    run = write_run(tmp_path / "second", steps=make_steps(2))
    (run.rank_folder / "steps.jsonl").write_bytes(b"rubbish\nmore of it\n")
    (warning,) = warnings_of(run)
    assert warning.startswith("2 lines of steps.jsonl could not be read")


def test_a_broken_window_is_told_and_costs_nothing_else(tmp_path):
    run = write_run(tmp_path / "run", steps=make_steps(5))
    (run.rank_folder / "allocations-1.parquet").write_bytes(b"PAR1 torn")
    (warning,) = warnings_of(run)
    assert "allocations-1.parquet is not a whole allocation window" in warning
    assert len(measurements_of(run).timeline.steps) == 5


def test_a_device_that_a_snapshot_says_nothing_of_is_told_beside_one_that_it_does(tmp_path):
    recording = Recording(AllocatorSettings())
    recording.free(recording.malloc(4096))
    both = recording.snapshot()
    both.segments += [replace(segment, device=1) for segment in both.segments]
    run = write_run(tmp_path / "run", steps=make_steps(5), snapshots=[both], devices=[GPU])
    (warning,) = warnings_of(run)
    assert warning.startswith("memory-1.pickle tells only the end of device 1: ")
