"""Sound files: one decoder everywhere (libsndfile), mono, 32 kHz, read in blocks, so that an hour takes no more memory
than a minute. A file that cannot be used says why."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from notela.errors import NotelaError, check_at_least
from notela.runs import replacing

Samples = npt.NDArray[np.float32]

SAMPLE_RATE = 32_000
ENDINGS = (".wav", ".w64", ".rf64", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff")
UNDECODABLE = (".m4a", ".mp4", ".aac", ".wma", ".wv", ".ape", ".amr", ".wac")  # sound, but not for libsndfile

_VALUES = 2**22  # decoded at a time, over all channels: 16 MB
_UNKNOWN_FRAMES = 2**60  # what libsndfile says of a FLAC that came from a pipe is larger
_END = 4096  # bytes
_AGAIN = "copy it again from the recorder, or leave it out"
_CONVERT = "convert it to FLAC or WAV"


class BadRecording(NotelaError):
    """A recording that cannot be used: which, why, and what to do."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(path, reason, remedy)  # all three, or it does not come whole out of another process
        self.path, self.reason, self.remedy = path, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; {self.remedy}"


def find_recordings(folder: Path) -> tuple[list[Path], list[BadRecording]]:
    """All sound files below a folder, sorted, and what is there but cannot be read: folders without permission, and
    sound in formats that libsndfile does not know. Hidden files and folders (macOS's `._` files too) do not count."""
    if not folder.is_dir():
        what = "is a file; name the folder it lies in" if folder.is_file() else "does not exist; check the path"
        raise NotelaError(f"{folder} {what}")
    found: list[Path] = []
    bad: list[BadRecording] = []
    seen: set[tuple[int, int]] = set()

    def unreadable(error: OSError) -> None:
        where = Path(os.fsdecode(error.filename))
        bad.append(BadRecording(where, f"this folder cannot be read ({error.strerror})", "give yourself permission"))

    for place, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        with contextlib.suppress(OSError):  # gone in the meantime
            status = os.stat(place)
            if (status.st_dev, status.st_ino) in seen:  # a link back: walked already
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path, ending = Path(place, name), os.path.splitext(name)[1].lower()
            if name.startswith("."):
                continue
            if ending in ENDINGS:
                found.append(path)
            elif ending in UNDECODABLE:
                bad.append(BadRecording(path, f"libsndfile does not decode {ending[1:].upper()}", _CONVERT))
    if not found:
        but = f" that can be read, but {bad[0]}" + (f" ({len(bad)} such)" if len(bad) > 1 else "") if bad else ""
        raise NotelaError(f"{folder} holds no sound files ({' '.join(ENDINGS)}){but or ', nor do its sub-folders'}")
    return sorted(found), sorted(bad, key=lambda problem: problem.path)


def file_state(path: Path) -> str:
    """What tells a recording from another of its name: size, time of the last change, and a hash of its two ends.
    Recorders on one schedule write equal names and sizes at equal times at every site."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            digest = hashlib.sha256(file.read(_END))
            file.seek(max(status.st_size - _END, 0))
            digest.update(file.read(_END))
    except OSError:  # gone, or a link to nowhere: whoever opens it will say so
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {digest.hexdigest()[:12]}"


class Recording:
    """A sound file that opens: rate, channels and frames as recorded, `length` in samples at 32 kHz."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        truncated = _truncation(self.path)
        if truncated:
            raise BadRecording(self.path, truncated, _AGAIN)
        with _decoder(self.path) as file:
            self.rate, self.channels, self.frames = int(file.samplerate), int(file.channels), int(file.frames)
            if self.frames > _UNKNOWN_FRAMES or (file.format == "MP3" and not _says_its_length(self.path)):
                self.frames = sum(map(len, self._decode(file, self.rate * 30)))  # unknown, or libsndfile's guess
        if self.length == 0:
            raise BadRecording(self.path, f"it holds no sound ({self.frames} samples)", "leave it out")

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.frames / self.rate

    @property
    def length(self) -> int:
        """Samples at 32 kHz that `blocks` gives in all: frames × 32,000 / rate, halves rounded up."""
        return (2 * self.frames * SAMPLE_RATE + self.rate) // (2 * self.rate)

    def blocks(self, seconds: float = 30.0) -> Iterator[Samples]:
        """The recording, mono and at 32 kHz, in blocks of at most about `seconds`; joined, they are bit for bit what
        resampling the whole at once gives. Samples that are no numbers raise BadRecording where they are; a silent or
        broken-off recording does so at the end, which a reader that stops before does not see."""
        check_at_least("seconds", seconds, 1e-3)
        resampler = None if self.rate == SAMPLE_RATE else soxr.ResampleStream(self.rate, SAMPLE_RATE, 1)
        lowest, highest, done = np.inf, -np.inf, 0
        with _decoder(self.path) as file:
            for mono in self._decode(file, max(1, int(seconds * self.rate))):
                low, high = float(mono.min()), float(mono.max())
                if not (np.isfinite(low) and np.isfinite(high)):
                    first = (done + int(np.flatnonzero(~np.isfinite(mono))[0])) / self.rate
                    raise BadRecording(self.path, f"it holds NaN or infinite samples (first at {first:.2f} s)", _AGAIN)
                lowest, highest, done = min(lowest, low), max(highest, high), done + len(mono)
                block = mono if resampler is None else resampler.resample_chunk(mono)
                if len(block):
                    yield block
        if done != self.frames:
            raise BadRecording(self.path, self._only(done), _AGAIN)
        if lowest == highest:
            raise BadRecording(self.path, f"it is silent (every sample is {lowest:g})", "check the microphone")
        if resampler is not None:
            yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)

    def _decode(self, file: _Stream, frames: int) -> Iterator[Samples]:
        """Mono at the recording's own rate; not more at a time than `_VALUES` with all channels."""
        frames, done = max(1, min(frames, _VALUES // file.channels)), 0
        while True:
            try:
                values = file.read(frames, dtype="float32", always_2d=True)
            except soundfile.LibsndfileError as error:
                reason = f"{self._only(done)} ({error.error_string.strip()})"
                raise BadRecording(self.path, reason, _AGAIN) from error
            if not len(values):
                return
            mono = values[:, 0].copy()
            for channel in range(1, file.channels):  # quicker than mean(1), whose inner loops are this short
                mono += values[:, channel]
            mono /= file.channels
            done += len(mono)
            yield mono

    def _only(self, done: int) -> str:
        return f"only {done / self.rate:.2f} of the {self.duration:.2f} s that its header promises can be decoded"


def write_flac(path: Path, samples: Samples | Iterable[Samples]) -> None:
    """Samples at 32 kHz, whole or in blocks, as 16-bit FLAC, whole or not at all; what lies beyond ±1 is clipped."""
    with replacing(path) as aside, open(aside, "wb") as file:
        sink = _Sink(file)
        try:
            with soundfile.SoundFile(sink, "w", SAMPLE_RATE, 1, "PCM_16", format="FLAC") as flac:
                for block in [samples] if isinstance(samples, np.ndarray) else samples:
                    if not np.isfinite(block).all():
                        raise NotelaError(
                            f"{path}: NaN or infinite samples cannot be written; leave out this recording"
                        )
                    flac.write(np.clip(np.round(block * 32768.0), -32768, 32767).astype(np.int16))
        except soundfile.LibsndfileError:
            if sink.error is None:
                raise
        if sink.error is not None:
            raise sink.error


class _Sink:
    """A file to write to that remembers what went wrong: libsndfile does not say that a disk is full."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.error = file, None  # type: BinaryIO, OSError | None
        self.seek, self.tell = file.seek, file.tell

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            return 0


@contextlib.contextmanager
def quiet_decoder() -> Iterator[None]:
    """Within this, what C libraries write to the error stream goes nowhere: libmpg123 comments on MP3s in the wild.
    Python's own messages still come through `sys.stderr`. It holds for the whole process, so enter it once, where a
    program or worker begins, and not around each file: threads that come and go would change it for each other."""
    try:
        python = sys.stderr if sys.stderr is not None and sys.stderr.fileno() == 2 else None
        before = os.dup(2)
    except (OSError, io.UnsupportedOperation):  # stderr is no file (a notebook) or closed (a service)
        yield
        return
    kept = os.fdopen(os.dup(before), "w", buffering=1, errors="backslashreplace")
    if python is not None:
        python.flush()
        sys.stderr = kept
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        if python is not None:
            sys.stderr = python
        kept.close()


class _Stream(soundfile.SoundFile):  # type: ignore[misc]
    """A file read from front to back. Where it can, soundfile seeks after each read, and an MP3 decoder that has been
    sent to where it is goes on with other last bits, a FLAC of unknown length with an error."""

    def seekable(self) -> bool:
        return False


def _decoder(path: Path) -> _Stream:
    """The file, opened for decoding."""
    with _opened(path):  # libsndfile's reasons are vague; the system's are not
        pass
    try:
        return _Stream(os.fspath(path) if sys.platform == "win32" else os.fsencode(path))
    except soundfile.LibsndfileError as error:
        why = error.error_string.strip().rstrip(".")
        reason = f"it is not a sound file that libsndfile can decode ({why})"
        raise BadRecording(path, reason, f"{_CONVERT}, or leave it out") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            raise BadRecording(path, "it is not a regular file", "leave it out")
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise BadRecording(path, "it is empty (0 bytes)", "leave it out")
            yield file
    except FileNotFoundError:
        raise BadRecording(path, "it does not exist", "check the path, and that its disk is attached") from None
    except PermissionError:
        raise BadRecording(path, "you may not read it", "give yourself permission") from None
    except OSError as error:
        raise BadRecording(path, f"it cannot be read ({error.strerror})", "check the disk") from error


# ---- what headers promise: libsndfile reads as much as there is and does not say that there should be more


def _truncation(path: Path) -> str | None:
    """Why the file must have been cut off, judging by its header or its end; None where nothing speaks for it."""
    with _opened(path) as file:
        start, size = file.read(16), os.fstat(file.fileno()).st_size
        if start[:4] == b"OggS":
            return None if _ogg_ends(file, size) else "it breaks off: the last page of the stream is missing"
        if start[:4] in (b"RIFF", b"RF64", b"BW64"):
            promised, there = _sound_bytes(file, size, "<4sI", 12, b"data", align=2)
        elif start[:4] == b"FORM":
            promised, there = _sound_bytes(file, size, ">4sI", 12, b"SSND", align=2)
        elif start[:4] == b"riff":  # W64: names of 16 bytes, and sizes that count the chunk's header
            promised, there = _sound_bytes(file, size, "<4s12xQ", 40, b"data", align=8)
        else:
            return None
    if promised <= there:
        return None
    return f"it is truncated: its header promises {promised:,} bytes of sound, and {there:,} are there"


def _sound_bytes(file: BinaryIO, size: int, header: str, first: int, wanted: bytes, align: int) -> tuple[int, int]:
    """Bytes of sound that a file of chunks promises, and that it holds; (0, 0) where it does not say."""
    position, long_size, head = first, 0, struct.calcsize(header)
    while position + head <= size:
        file.seek(position)
        name, length = struct.unpack(header, file.read(head))
        if align == 8:
            length = max(length - head, 0)
        position += head
        if name == b"ds64":  # RF64: the sizes that do not fit into 32 bits
            long_size = int.from_bytes(file.read(16)[8:], "little")
        if name == wanted:
            if length == 0xFFFFFFFF and align == 2:  # in an RF64 see ds64; in a WAV from a pipe nobody knows
                length = long_size
            return length, size - position
        position += length + -length % align
    return 0, 0


def _ogg_ends(file: BinaryIO, size: int) -> bool:
    """Whether the last page is whole and says that it is the last."""
    file.seek(max(0, size - 2**17))  # a page has at most 65,307 bytes
    tail = file.read()
    at = tail.rfind(b"OggS\0")
    if at < 0 or at + 27 > len(tail):
        return False
    segments = tail[at + 27 : at + 27 + tail[at + 26]]
    return bool(tail[at + 5] & 4) and at + 27 + len(segments) + sum(segments) <= len(tail)


def _says_its_length(path: Path) -> bool:
    """Whether an MP3 begins with a frame that counts the others (Xing or Info); libsndfile guesses otherwise."""
    with _opened(path) as file:
        start = file.read(10)
        if start[:3] == b"ID3":  # a tag, its size in four times seven bits
            file.seek(10 + sum((byte & 127) << shift for byte, shift in zip(start[6:], (21, 14, 7, 0), strict=True)))
        else:
            file.seek(0)
        frame = file.read(64)
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    return at >= 0 and bool(frame[at + 7 : at + 8] and frame[at + 7] & 1)
