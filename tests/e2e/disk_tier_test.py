"""A server with a disk tier: prefixes outlive it, and a disk that lies or ends costs time, never an answer."""

import glob
import json
import os
import tempfile
import time
import unittest

from support import Server, model_path, run

COMPLETIONS = "/v1/completions"
# A block of 16 tokens takes 360 KiB, on the disk, too, in 30 pieces; so the disk holds 182 of them.
BLOCK = ("--block-size", "16")
SIZE = ("--kv-offloading-disk-size", "0.0625")
HEADER = 1 << 20
PAGE = 4096
LONG = "".join(f"On day {i} the raven found {i * 7 % 13} berries. " for i in range(20))


def ask(server, prompt=LONG, max_tokens=8):
    """The text, and how many tokens of the prompt were there already."""
    status, _, answer = server.ask("POST", COMPLETIONS, {"prompt": prompt, "max_tokens": max_tokens,
                                                         "temperature": 0, "ignore_eos": True})
    answer = json.loads(answer)
    if status != 200:
        raise AssertionError(answer)
    usage = answer["usage"]
    return answer["choices"][0]["text"], usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def data_file(directory):
    return os.path.join(directory, "kvasir-kv.data")


def written_pages(path):
    """Offsets of the pages of the tier that hold something."""
    with open(path, "rb") as file:
        file.seek(HEADER)
        data = file.read()
    return [HEADER + at for at in range(0, len(data), PAGE) if any(data[at:at + PAGE])]


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


class DiskTier(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*BLOCK) as server:
            cls.want, _, cls.prompt_tokens = ask(server)
            assert server.metric("kv_tier_bytes", tier="disk") == 0
            page = server.ask("GET", "/metrics")[2].decode()
            assert "kvasir:disk_" not in page and 'kv_tier_bytes{' in page
        # What may be reused is whole blocks, and never the last token.
        cls.reusable = (cls.prompt_tokens - 1) // 16 * 16

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def server(self, *flags, **more):
        return Server(*BLOCK, "--kv-offloading-dir", self.directory, *SIZE, *flags, **more)

    def fill(self, *flags):
        """One life of a server, after which the prompt is on the disk."""
        with self.server(*flags) as server:
            text, cached, _ = ask(server)
            self.assertEqual(cached, 0)
            self.assertEqual(server.stop(), 0)
            self.check_log(server)
        return text

    def check_log(self, server):
        for line in server.log:
            self.assertNotRegex(line, r"(?i) (error|fatal) |check failed|leak|sanitizer")

    def wait_on_disk(self, server, blocks):
        end = time.monotonic() + 30
        while server.metric("kv_tier_cached_blocks", tier="disk") < blocks:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        server.wait_metric("link_transfers_in_flight", 0)

    def test_a_prefix_outlives_the_server(self):
        with self.server() as server:
            self.assertEqual(ask(server), (self.want, 0, self.prompt_tokens))
            self.wait_on_disk(server, self.reusable // 16)
            # What is smaller than a cell stays unused.
            self.assertLessEqual(server.metric("kv_tier_bytes", tier="disk"), 64 << 20)
            self.assertGreater(server.metric("kv_tier_bytes", tier="disk"), (64 << 20) - 3 * PAGE)
            self.assertEqual(server.metric("kv_tier_used_bytes", tier="disk"), 0)
            written = server.metric("disk_written_bytes_total")
            self.assertGreaterEqual(written, self.reusable // 16 * 360 * 1024)
            self.assertEqual(server.metric("link_bytes_total", **{"from": "device", "to": "disk"}), written)
            self.assertGreater(server.metric("disk_busy_seconds_total"), 0)
            self.assertGreater(server.metric("disk_bytes_per_second"), 0)
            report = next(line for line in server.log if line.startswith("memory: "))
            self.assertRegex(report, "disk tier 64.00 MiB = 182 blocks of 16 tokens .* in .*kvasir-kv.data.* "
                                     "128.00 KiB of memory for checksums")
            self.assertEqual(server.stop(), 0)
            self.check_log(server)
        with self.server() as server:
            self.assertTrue(server.wait_log(r" \d+ tokens of prefixes from before can be reused"), server.log)
            self.assertGreaterEqual(server.metric("kv_tier_cached_blocks", tier="disk"), self.reusable // 16)
            self.assertEqual(ask(server), (self.want, self.reusable, self.prompt_tokens))
            self.assertEqual(server.metric("prefix_cache_hits_by_tier_total", tier="disk"), self.reusable)
            self.assertGreaterEqual(server.metric("disk_read_bytes_total"), self.reusable // 16 * 360 * 1024)
            # Now it is on the device.
            self.assertEqual(ask(server), (self.want, self.reusable, self.prompt_tokens))
            self.assertEqual(server.metric("prefix_cache_hits_by_tier_total", tier="device"), self.reusable)
            self.assertEqual(server.metric("disk_read_failures_total"), 0)
            self.assertEqual(server.metric("disk_write_failures_total"), 0)
            self.assertEqual(server.stop(), 0)
            self.check_log(server)

    def test_sigterm_right_after_the_answer_keeps_it(self):
        # Also where the copies have to pass beside a host tier.
        for flags in ((), ("--kv-offloading-size", "64MiB")):
            with self.subTest(flags), tempfile.TemporaryDirectory() as self.directory:
                self.assertEqual(self.fill(*flags), self.want)
                with self.server(*flags) as server:
                    self.assertEqual(ask(server), (self.want, self.reusable, self.prompt_tokens))

    def test_a_server_that_was_killed_starts_empty(self):
        with self.server() as server:
            ask(server)
            self.wait_on_disk(server, self.reusable // 16)
            server.process.kill()
            server.wait()
        with self.server() as server:
            self.assertTrue(server.wait_log("starts empty: it was not closed in order"), server.log)
            self.assertEqual(ask(server), (self.want, 0, self.prompt_tokens))

    def test_what_was_stored_otherwise_is_not_used(self):
        for flags, why in ((("--kv-cache-dtype", "q8_0"), "numerics id"), (("--kv-layer-group", "2"), "shape")):
            with self.subTest(why):
                self.fill()
                with Server(*BLOCK, *flags) as plain:
                    want = ask(plain)[0]
                with self.server(*flags) as server:
                    self.assertTrue(server.wait_log(f"the disk tier starts empty: .*{why}"), server.log)
                    self.assertEqual(ask(server), (want, 0, self.prompt_tokens))
                for path in glob.glob(os.path.join(self.directory, "*")):
                    os.remove(path)

    def test_a_byte_that_changed_is_noticed(self):
        self.fill()
        path = data_file(self.directory)
        pages = written_pages(path)
        # Neither in the first block nor in the last one: that may hold what was generated.
        flip(path, pages[len(pages) // 2] + 100)
        with self.server() as server:
            self.assertEqual(ask(server)[0], self.want)
            self.assertEqual(server.metric("disk_read_failures_total", reason="checksum"), 1)
            self.assertEqual(ask(server), (self.want, self.reusable, self.prompt_tokens))
            self.assertEqual(server.stop(), 0)
        # Every piece of every block.
        for page in written_pages(path):
            flip(path, page + 4000)
        with self.server() as server:
            self.assertEqual(ask(server)[0], self.want)
            self.assertGreater(server.metric("disk_read_failures_total", reason="checksum"), 1)
            self.assertEqual(ask(server), (self.want, self.reusable, self.prompt_tokens))
            server.wait_metric("link_transfers_in_flight", 0)
            server.wait_metric("kv_tier_used_bytes", 0)
            self.assertEqual(server.stop(), 0)
            self.check_log(server)

    def test_a_file_that_is_cut_short(self):
        self.fill()
        path = data_file(self.directory)
        size = os.path.getsize(path)
        with self.server() as server:
            os.truncate(path, HEADER)
            self.assertEqual(ask(server)[0], self.want)
            self.assertGreater(server.metric("disk_read_failures_total", reason="short"), 0)
            self.assertEqual(ask(server)[0], self.want)
            self.assertEqual(server.stop(), 0)
            self.check_log(server)
        with self.server() as server:
            self.assertEqual(os.path.getsize(path), size)
            self.assertEqual(ask(server)[0], self.want)
        # The index, too.
        self.fill_again()
        with open(os.path.join(self.directory, "kvasir-kv.index"), "r+b") as index:
            index.truncate(100)
        with self.server() as server:
            self.assertTrue(server.wait_log("starts empty"), server.log)
            self.assertEqual(ask(server), (self.want, 0, self.prompt_tokens))

    def fill_again(self):
        with self.server() as server:
            self.assertEqual(ask(server)[0], self.want)
            self.assertEqual(server.stop(), 0)

    def test_a_request_may_be_longer_than_the_device(self):
        with self.server(memory="8MiB") as server:
            largest = json.loads(server.ask("GET", "/v1/models")[2])["data"][0]["max_model_len"]
            self.assertEqual(largest, 188 * 16)
            self.assertEqual(ask(server)[0], self.want)
            self.assertGreater(server.metric("engine_steps_staged_total"), 0)
            self.assertGreater(server.metric("disk_reads_total"), 0)
            server.wait_metric("kv_tier_used_bytes", 0)
            self.assertEqual(server.stop(), 0)
            self.check_log(server)
        # What streamed is on the disk, and found there; the other server has room for it.
        with self.server() as server:
            text, cached, _ = ask(server)
            self.assertEqual(text, self.want)
            self.assertGreater(cached, 0)

    def test_generate_takes_the_same_flags(self):
        flags = ("--prompt", LONG, "--max-tokens", "8", "--temperature", "0")
        disk = (*BLOCK, "--kv-offloading-dir", self.directory, *SIZE)
        want = run("generate", model_path(), "--kv-cache-memory-bytes", "64MiB", *flags)
        for reused in (False, True):
            got = run("generate", model_path(), "--kv-cache-memory-bytes", "64MiB", *disk, *flags)
            self.assertEqual(got.returncode, 0, got.stderr)
            self.assertEqual(got.stdout, want.stdout)
            self.assertEqual("prefixes from before can be reused" in got.stderr
                             and " 0 tokens of prefixes from before" not in got.stderr, reused, got.stderr)

    def refused(self, *flags, code=1):
        """The one line that a server says which does not start."""
        got = run("serve", model_path(), "--port", "0", "--kv-cache-memory-bytes", "64MiB", *BLOCK, *flags)
        self.assertEqual(got.returncode, code, got.stderr)
        lines = [line for line in got.stderr.splitlines()
                 if " info " not in line and not line.startswith("Run with --help")]
        self.assertEqual(len(lines), 1, got.stderr)
        return lines[0]

    def test_what_cannot_be(self):
        directory = ("--kv-offloading-dir", self.directory)
        missing = os.path.join(self.directory, "missing")
        for flags, says in ((directory, "--kv-offloading-disk-size"), (SIZE, "--kv-offloading-dir"),
                            (("--kv-offloading-dir", missing, *SIZE), "no such directory"),
                            # Where even root may not write.
                            (("--kv-offloading-dir", "/sys", *SIZE), "/sys"),
                            ((*directory, "--kv-offloading-disk-size", "9999999"), "ask for less|of memory"),
                            ((*directory, "--kv-offloading-disk-size", "64KiB"), "one block of 16 tokens")):
            with self.subTest(says):
                self.assertRegex(self.refused(*flags), says)
                self.assertEqual(os.listdir(self.directory), [])
        self.refused(*directory, "--kv-offloading-disk-size", "much", code=2)

    def test_two_servers_do_not_share(self):
        with self.server() as server:
            self.assertRegex(self.refused("--kv-offloading-dir", self.directory, *SIZE), "another server uses")
            self.assertEqual(ask(server)[0], self.want)
            self.assertEqual(server.stop(), 0)
        with self.server() as server:
            self.assertEqual(ask(server), (self.want, self.reusable, self.prompt_tokens))


if __name__ == "__main__":
    unittest.main(verbosity=2)
