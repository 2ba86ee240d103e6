"""What ./dev cluster prints, tried with the sizes that it has: a long prompt, an instance killed meanwhile, the same text."""

import json
import pathlib
import re
import threading
import time
import unittest

from cluster import Cluster, need_etcd
from support import model_path

DEV = (pathlib.Path(__file__).resolve().parents[2] / "dev").read_text(encoding="utf-8")
TTL = 3  # seconds until a silent instance counts as dead


def printed(pattern):
    """The only match's group in ./dev."""
    found = re.findall(pattern, DEV)
    if len(found) != 1:
        raise AssertionError(f"./dev has {pattern!r} {len(found)} times")
    return found[0]


NUMBERS = int(printed(r"seq -s ' ' (\d+) \| sed"))
BODY = json.loads(printed(r"sed 's/\.\*/(\{.*?\})/'"))
TOKENS = int(printed(r"A prompt of ([\d,]+) tokens").replace(",", ""))
MEMORY = printed(r"KVASIR_KV_CACHE_MEMORY_BYTES:-(\w+)\}")


def body(numbers):
    return BODY | {"prompt": BODY["prompt"].replace("&", " ".join(map(str, range(1, numbers + 1))))}


def setUpModule():
    need_etcd()
    model_path()


class Demonstration(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(model_path(), 3, "--cluster-ttl", str(TTL), memory=MEMORY)
        self.addCleanup(self.cluster.close)
        self.n1, self.n2 = self.cluster.instances["n1"], self.cluster.instances["n2"]

    def ask(self, numbers):
        connection = self.n1.connection(300)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps(body(numbers)), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def test_the_text_stays_the_same_when_an_instance_dies(self):
        status, undisturbed = self.ask(NUMBERS)
        self.assertEqual(status, 200, undisturbed)
        self.assertEqual(undisturbed["usage"]["prompt_tokens"], TOKENS)
        self.cluster.wait_quiet()

        answers = []
        asking = threading.Thread(target=lambda: answers.append(self.ask(NUMBERS)))
        begun = self.n1.metric("generation_tokens_total")
        asking.start()
        give_up = time.monotonic() + 120
        while self.n1.metric("generation_tokens_total") < begun + 20:
            self.assertLess(time.monotonic(), give_up, "no token comes")
            time.sleep(0.02)
        self.assertGreater(self.n2.metric("peer_cells", state="lent"), 0, "the one that dies lends nothing")
        self.assertEqual(answers, [], "the answer was there before")
        self.n2.kill()
        asking.join()
        status, disturbed = answers[0]
        self.assertEqual(status, 200, disturbed)
        self.assertEqual(disturbed["choices"][0]["text"], undisturbed["choices"][0]["text"])

        # What the two that are left cannot hold is refused when the dead one's lease has ended, and not two minutes later.
        begun = time.monotonic()
        status, refused = self.ask(NUMBERS * 3 // 2)
        self.assertEqual(status, 503, refused)
        self.assertLess(time.monotonic() - begun, 60)


if __name__ == "__main__":
    unittest.main()
