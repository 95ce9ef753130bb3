"""Sound files in every form, and in every state in which they come from the field."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from notela.bioacoustics.audio import SAMPLE_RATE, BadRecording, Recording, find_recordings, write_flac
from notela.errors import NotelaError
from permissions import bound_by_permissions

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "birds"
FORMS = {  # file name: (format, subtype, rate, channels)
    "16.wav": ("WAV", "PCM_16", 44_100, 2),
    "8.wav": ("WAV", "PCM_U8", 22_050, 1),
    "24.wav": ("WAV", "PCM_24", 96_000, 1),
    "float.WAV": ("WAV", "FLOAT", 48_000, 2),
    "seven.wav": ("WAVEX", "PCM_16", 48_000, 7),
    "same.wav": ("WAV", "PCM_16", 32_000, 1),
    "a.w64": ("W64", "PCM_16", 250_000, 1),
    "a.rf64": ("RF64", "PCM_24", 44_100, 2),
    "a.flac": ("FLAC", "PCM_16", 48_000, 2),
    "a.ogg": ("OGG", "VORBIS", 44_100, 2),
    "a.opus": ("OGG", "OPUS", 48_000, 1),
    "a.mp3": ("MP3", "MPEG_LAYER_III", 44_100, 2),
    "a.aiff": ("AIFF", "PCM_16", 44_100, 2),
    "float.aif": ("AIFF", "FLOAT", 44_100, 1),
}


def sound(frames: int, channels: int = 1, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 0.1, (frames, channels)).clip(-0.99, 0.99)
    return values.astype(np.float32)


def write(folder: Path, name: str, seconds: float = 2.0) -> Path:
    form, subtype, rate, channels = FORMS[name]
    soundfile.write(folder / name, sound(int(seconds * rate), channels), rate, format=form, subtype=subtype)
    return folder / name


def joined(recording: Recording, seconds: float = 30.0) -> np.ndarray:
    return np.concatenate(list(recording.blocks(seconds)))


# ---- what is read


@pytest.mark.parametrize("name", FORMS)
def test_blocks_joined_are_the_whole_decoded_and_resampled_at_once(name: str, tmp_path: Path) -> None:
    recording = Recording(write(tmp_path, name))
    values, rate = soundfile.read(recording.path, dtype="float32", always_2d=True)
    whole = soxr.resample(values.mean(1), rate, SAMPLE_RATE)
    assert (recording.rate, recording.channels) == FORMS[name][2:]
    assert recording.frames == len(values)
    assert recording.duration == pytest.approx(2.0)
    for seconds in (0.3, 30.0):
        samples = joined(recording, seconds)
        assert samples.dtype == np.float32
        assert len(samples) == recording.length == len(whole)
        np.testing.assert_allclose(samples, whole, rtol=0, atol=1e-6)
        if recording.channels <= 2:  # halving loses nothing, so there is only one mean
            assert np.array_equal(samples, whole)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rate=st.sampled_from([8_000, 11_025, 16_000, 32_000, 44_100, 64_000, 96_000, 31_999]),
    frames=st.integers(20, 5_000),
    seconds=st.floats(0.001, 0.2),
)
def test_any_rate_length_and_block(rate: int, frames: int, seconds: float, tmp_path: Path) -> None:
    values = sound(frames, seed=frames)[:, 0]
    soundfile.write(tmp_path / "a.wav", values, rate, subtype="FLOAT")
    recording = Recording(tmp_path / "a.wav")
    samples = joined(recording, seconds)
    assert np.array_equal(samples, soxr.resample(values, rate, SAMPLE_RATE))
    assert len(samples) == recording.length == int(np.floor(frames * SAMPLE_RATE / rate + 0.5))


def test_a_tone_keeps_its_pitch_and_level(tmp_path: Path) -> None:
    time = np.arange(96_000) / 96_000
    soundfile.write(tmp_path / "a.wav", 0.5 * np.sin(2 * np.pi * 3_000 * time), 96_000, subtype="PCM_24")
    samples = joined(Recording(tmp_path / "a.wav"))
    expected = 0.5 * np.sin(2 * np.pi * 3_000 * np.arange(SAMPLE_RATE) / SAMPLE_RATE)
    assert abs(samples - expected)[200:-200].max() < 1e-4


def test_blocks_are_no_longer_than_asked_and_many_channels_do_not_make_them_larger(tmp_path: Path) -> None:
    recording = Recording(write(tmp_path, "seven.wav", seconds=20))
    assert max(map(len, recording.blocks(1.0))) < 1.1 * SAMPLE_RATE
    assert max(map(len, recording.blocks(1_000.0))) * 48_000 / SAMPLE_RATE * 7 * 4 < 20e6
    with pytest.raises(NotelaError, match="seconds=0 must be a number of at least"):
        next(recording.blocks(0))


def test_three_hours_take_no_more_memory_than_three_minutes(tmp_path: Path) -> None:
    minute = np.random.default_rng(0).integers(0, 256, 8_000 * 60).astype(np.uint8).tobytes()
    for minutes in (3, 180):
        with open(tmp_path / f"{minutes}.wav", "wb") as file:
            size = len(minute) * minutes
            file.write(
                struct.pack(
                    "<4sI8sIHHIIHH4sI", b"RIFF", size + 36, b"WAVEfmt ", 16, 1, 1, 8_000, 8_000, 1, 8, b"data", size
                )
            )
            for _ in range(minutes):
                file.write(minute)
    program = """
import resource, sys
from notela.bioacoustics.audio import Recording
for path in sys.argv[1:]:
    recording = Recording(path)
    assert sum(map(len, recording.blocks())) == recording.length
    print(recording.duration, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    paths = [str(tmp_path / f"{minutes}.wav") for minutes in (3, 180)]
    lines = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True, check=True).stdout
    (short, little), (long, much) = (map(float, line.split()) for line in lines.splitlines())
    assert (short, long) == (180, 10_800)
    unit = 1 if sys.platform == "darwin" else 1024
    assert (much - little) * unit < 16e6  # the long one decoded would be 1.4 GB


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/birds")
def test_real_recordings_are_whole() -> None:
    paths, bad = find_recordings(DATA / "focal")
    assert len(paths) == 342
    assert not bad
    short = [path for path in paths if path.stat().st_size < 250_000][::6]
    assert {path.suffix for path in short} >= {".mp3", ".flac"}
    for path in short:
        recording = Recording(path)
        values, rate = soundfile.read(path, dtype="float32", always_2d=True)
        whole = soxr.resample(values.mean(1), rate, SAMPLE_RATE)
        assert len(whole) == recording.length
        assert np.array_equal(joined(recording, 1.7), whole)


# ---- what is refused


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def end_missing(content: bytes) -> bytes:
    return content[:-1_000]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("damage", [half, end_missing])
def test_truncated_files(name: str, damage: Any, tmp_path: Path) -> None:
    path = write(tmp_path, name)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        BadRecording, match="promises .* bytes of sound, and .* are there|can be decoded|breaks off"
    ) as error:
        joined(Recording(path))
    assert str(error.value).startswith(f"{path}: ")
    assert str(error.value).endswith("; copy it again from the recorder, or leave it out")


def test_the_message_of_a_truncated_wav(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", sound(1_000), 32_000, subtype="PCM_16")
    os.truncate(tmp_path / "a.wav", 44 + 500)
    with pytest.raises(BadRecording, match="its header promises 2,000 bytes of sound, and 500 are there"):
        Recording(tmp_path / "a.wav")


@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.flac", "a.ogg", "a.w64"])
def test_text_named_as_sound(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("Recorded at the pond, 5 May, light rain.\n" * 50)
    with pytest.raises(BadRecording, match="not a sound file that libsndfile can decode|breaks off"):
        Recording(tmp_path / name)


@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.flac", "a.opus"])
def test_0_bytes(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(BadRecording, match=r"it is empty \(0 bytes\); leave it out"):
        Recording(tmp_path / name)


@pytest.mark.parametrize("name", ["16.wav", "a.w64", "a.rf64", "a.aiff"])
def test_0_frames(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match=r"it holds no sound \(0 samples\)"):
        Recording(write(tmp_path, name, seconds=0))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rate", [32_000, 44_100])
def test_samples_that_are_no_numbers(value: float, rate: int, tmp_path: Path) -> None:
    values = sound(rate * 2, 2)
    values[rate * 3 // 2, 1] = value
    soundfile.write(tmp_path / "a.wav", values, rate, subtype="FLOAT")
    with pytest.raises(BadRecording, match=r"NaN or infinite samples \(first at 1.50 s\)"):
        joined(Recording(tmp_path / "a.wav"), 0.4)


@pytest.mark.parametrize("name", ["16.wav", "8.wav", "a.flac", "a.mp3"])
def test_silence(name: str, tmp_path: Path) -> None:
    form, subtype, rate, channels = FORMS[name]
    soundfile.write(tmp_path / name, np.zeros((rate, channels)), rate, format=form, subtype=subtype)
    with pytest.raises(BadRecording, match=r"it is silent \(every sample is 0\); check the microphone"):
        joined(Recording(tmp_path / name))


def test_an_offset_is_silence_and_a_single_click_is_not(tmp_path: Path) -> None:
    values = np.full(32_000, 0.25)
    soundfile.write(tmp_path / "a.wav", values, 32_000)
    with pytest.raises(BadRecording, match="every sample is 0.25"):
        joined(Recording(tmp_path / "a.wav"), 0.1)
    values[17_000] = 0.5
    soundfile.write(tmp_path / "a.wav", values, 32_000)
    assert len(joined(Recording(tmp_path / "a.wav"), 0.1)) == 32_000


def test_a_flac_with_a_damaged_middle(tmp_path: Path) -> None:
    path = write(tmp_path, "a.flac")
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 20_000] = bytes(20_000)
    path.write_bytes(content)
    with pytest.raises(BadRecording, match=r"only \d.\d\d of the 2.00 s that its header promises can be decoded"):
        joined(Recording(path), 0.2)


def test_places_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="it does not exist; check the path"):
        Recording(tmp_path / "a.wav")
    with pytest.raises(BadRecording, match="not a regular file"):
        Recording(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.wav")
        with pytest.raises(BadRecording, match="not a regular file"):
            Recording(tmp_path / "pipe.wav")
    recording = Recording(write(tmp_path, "16.wav"))
    recording.path.unlink()
    with pytest.raises(BadRecording, match="it does not exist"):
        joined(recording)


def test_without_permission(tmp_path: Path) -> None:
    path = write(tmp_path, "16.wav")
    path.chmod(0)
    with bound_by_permissions(), pytest.raises(BadRecording, match="you may not read it; give yourself permission"):
        Recording(path)


def test_a_reason_comes_whole_out_of_another_process() -> None:
    error = pickle.loads(pickle.dumps(BadRecording(Path("a.wav"), "it is silent", "check the microphone")))
    assert (error.path, error.reason, error.remedy) == (Path("a.wav"), "it is silent", "check the microphone")
    assert str(error) == "a.wav: it is silent; check the microphone"


# ---- headers that say little, and are right


def test_a_wav_from_a_pipe_does_not_know_its_size(tmp_path: Path) -> None:
    path = write(tmp_path, "16.wav")
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = b"\xff" * 4
    path.write_bytes(content)
    assert Recording(path).frames == 88_200


def test_chunks_before_and_after_the_sound(tmp_path: Path) -> None:
    path = write(tmp_path, "8.wav", seconds=1)
    content = path.read_bytes()
    note = b"LIST" + struct.pack("<I", 5) + b"INFO!\0"  # an odd size is padded
    path.write_bytes(content[:36] + note + content[36:] + note)
    assert Recording(path).frames == 22_050
    path.write_bytes(content[:36] + note + content[36:-100])
    with pytest.raises(BadRecording, match="promises 22,050 bytes of sound, and 21,950 are there"):
        Recording(path)


def test_an_mp3_that_does_not_say_its_length_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "a.mp3")
    content = path.read_bytes()
    assert b"Xing" in content[:64]
    tag = b"ID3\x04\0\0\0\0\x02\x00" + bytes(256)
    path.write_bytes(tag + content)
    assert Recording(path).frames == 88_200
    path.write_bytes(tag + content.replace(b"Xing", bytes(4), 1))
    recording = Recording(path)
    decoded = soundfile.read(path, dtype="float32")[0]
    assert soundfile.info(path).frames != len(decoded)  # libsndfile's guess from the size of the file
    assert recording.frames == len(decoded)
    assert len(joined(recording)) == recording.length


def test_a_flac_that_does_not_say_its_length_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "a.flac")
    content = bytearray(path.read_bytes())
    content[21] &= 0xF0  # the number of samples has 36 bits, and 0 means unknown
    content[22:26] = bytes(4)
    path.write_bytes(content)
    recording = Recording(path)
    assert recording.frames == 96_000
    assert len(joined(recording)) == recording.length == 64_000


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    path = write(tmp_path, "16.wav")
    strange = os.fsencode(tmp_path) + b"/for\xeat.wav"
    try:
        os.rename(path, strange)
    except OSError:
        pytest.skip("this disk takes Unicode names only")
    (found,), _ = find_recordings(tmp_path)
    assert Recording(found).frames == 88_200


# ---- folders


def test_sound_files_below_a_folder(tmp_path: Path) -> None:
    for name in ("b.WAV", "pond/a.flac", "pond/a.Mp3", "pond/north/x.rf64", "forest/z.w64"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("._b.WAV", ".hidden.wav", "notes.txt", "pond/wav", "pond/a.flac.aside", ".Trashes/a.wav"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "pond" / "loop").symlink_to(tmp_path)
    found, bad = find_recordings(tmp_path)
    names = ["b.WAV", "forest/z.w64", "pond/a.Mp3", "pond/a.flac", "pond/north/x.rf64"]
    assert [path.relative_to(tmp_path).as_posix() for path in found] == names
    assert not bad


def test_a_linked_site_counts(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a.wav").touch()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "site").symlink_to(tmp_path / "disk")
    assert find_recordings(tmp_path / "project")[0] == [tmp_path / "project" / "site" / "a.wav"]


def test_sound_that_cannot_be_decoded_is_listed(tmp_path: Path) -> None:
    for name in ("a.wav", "b.M4A", "c.wma"):
        (tmp_path / name).touch()
    found, bad = find_recordings(tmp_path)
    assert found == [tmp_path / "a.wav"]
    assert [str(problem) for problem in bad] == [
        f"{tmp_path / 'b.M4A'}: libsndfile does not decode M4A; convert it to FLAC or WAV",
        f"{tmp_path / 'c.wma'}: libsndfile does not decode WMA; convert it to FLAC or WAV",
    ]
    (tmp_path / "a.wav").unlink()
    with pytest.raises(NotelaError, match=r"holds no sound files .* that can be read, but .*b.M4A.*\(2 such\)"):
        find_recordings(tmp_path)


def test_a_folder_without_permission_is_listed(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    (tmp_path / "site").mkdir()
    (tmp_path / "site").chmod(0)
    try:
        with bound_by_permissions():
            found, (problem,) = find_recordings(tmp_path)
    finally:
        (tmp_path / "site").chmod(0o700)
    assert found == [tmp_path / "a.wav"]
    assert (
        str(problem) == f"{tmp_path / 'site'}: this folder cannot be read (Permission denied); give yourself permission"
    )


def test_wrong_paths_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="nowhere does not exist; check the path"):
        find_recordings(tmp_path / "nowhere")
    with pytest.raises(NotelaError, match=r"holds no sound files \(.wav .* .aiff\), nor do its sub-folders"):
        find_recordings(tmp_path)
    (tmp_path / "a.wav").touch()
    with pytest.raises(NotelaError, match="a.wav is a file; name the folder it lies in"):
        find_recordings(tmp_path / "a.wav")


# ---- writing


def test_16_bit_samples_come_back_as_they_were(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).integers(-32768, 32768, 5_000)
    write_flac(tmp_path / "a.flac", (whole / 32768).astype(np.float32))
    back, rate = soundfile.read(tmp_path / "a.flac", dtype="int16")
    assert np.array_equal(back, whole)
    assert rate == SAMPLE_RATE
    assert soundfile.info(tmp_path / "a.flac").subtype == "PCM_16"
    assert [path.name for path in tmp_path.iterdir()] == ["a.flac"]


def test_loud_samples_are_clipped_and_do_not_turn_over(tmp_path: Path) -> None:
    write_flac(tmp_path / "a.flac", np.array([1.0, 1.5, -1.0, -2.0, 0.0], np.float32))
    assert soundfile.read(tmp_path / "a.flac", dtype="int16")[0].tolist() == [32767, 32767, -32768, -32768, 0]


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotelaError, match="NaN or infinite samples cannot be written"):
        write_flac(tmp_path / "a.flac", np.array([0, np.nan], np.float32))
    with pytest.raises(NotelaError, match="cannot write .*a.flac"):
        write_flac(tmp_path / "nowhere" / "a.flac", np.zeros(10, np.float32))


def test_flac_is_written_in_blocks(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, 100_000).astype(np.float32)
    write_flac(tmp_path / "a.flac", samples)
    write_flac(tmp_path / "b.flac", iter([samples[:1], samples[1:70_000], samples[70_000:]]))
    assert (tmp_path / "a.flac").read_bytes() == (tmp_path / "b.flac").read_bytes()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """libsndfile itself would go on as if nothing had happened."""
    (tmp_path / ".a.flac.aside").symlink_to("/dev/full")
    noise = np.random.default_rng(0).uniform(-1, 1, 500_000).astype(np.float32)
    with pytest.raises(NotelaError, match=r"cannot write .*a\.flac .*No space left on device"):
        write_flac(tmp_path / "a.flac", noise)
    assert list(tmp_path.iterdir()) == []


def test_the_decoder_is_quiet_and_python_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, "a.mp3")
    path.write_bytes(half(path.read_bytes()))
    program = """
import os, sys
from notela.bioacoustics.audio import BadRecording, Recording, quiet_decoder
def read():
    try:
        list(Recording(sys.argv[1]).blocks())
    except BadRecording as error:
        print(error.reason[:5], file=sys.stderr)
read()
os.write(2, b"----")
with quiet_decoder():
    read()
    os.write(2, b"from C")
os.write(2, b"after")
"""
    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    loud, quiet = run.stderr.split("----")
    assert "Xing stream size off" in loud
    assert quiet == "only \nafter"
