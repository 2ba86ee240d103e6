"""tools/requantize.py: what changes in a model, and what does not."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import make_model  # noqa: E402
from gguf_io import GgufReader, decode, encode  # noqa: E402


class Requantize(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = cls.path("model.gguf")
        make_model.main([cls.model, "--preset", "tiny-gqa", "--weights", "q4_1", "--embedding-weights", "q8_0"])

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return str(pathlib.Path(cls.folder.name, name))

    def requantize(self, output, *flags):
        return subprocess.run([sys.executable, str(TOOLS / "requantize.py"), self.model, self.path(output), *flags],
                              capture_output=True, text=True)

    def test_the_same_type_gives_the_same_bytes(self):
        self.assertEqual(self.requantize("same.gguf", "--weights", "q4_1").returncode, 0)
        self.assertEqual(pathlib.Path(self.path("same.gguf")).read_bytes(), pathlib.Path(self.model).read_bytes())

    def test_matrices_are_rounded_to_the_new_type(self):
        for kind in ("q4_0", "q8_0", "bf16", "f32"):
            self.assertEqual(self.requantize(f"{kind}.gguf", "--weights", kind).returncode, 0)
            old, new = GgufReader(self.model), GgufReader(self.path(f"{kind}.gguf"))
            self.assertEqual(list(old.tensors), list(new.tensors))
            for name, (shape, old_kind, _) in old.tensors.items():
                changed = len(shape) > 1 and name != "token_embd.weight"
                self.assertEqual(new.tensors[name][:2], (shape, kind if changed else old_kind), name)
                values = old.tensor(name)
                if changed:
                    values = decode(np.frombuffer(encode(values, kind), np.uint8), kind).reshape(shape)
                np.testing.assert_array_equal(new.tensor(name), values, name)
            self.assertEqual(new.metadata.pop("general.file_type"), make_model.FILE_TYPES[kind])
            del old.metadata["general.file_type"]
            self.assertEqual(old.metadata, new.metadata)

    def test_embedding_weights(self):
        self.requantize("embedding.gguf", "--weights", "q4_1", "--embedding-weights", "bf16")
        new = GgufReader(self.path("embedding.gguf"))
        self.assertEqual(new.tensors["token_embd.weight"][1], "bf16")
        self.assertEqual(new.tensors["blk.0.attn_q.weight"][1], "q4_1")

    def test_the_model_is_not_overwritten(self):
        result = self.requantize("model.gguf", "--weights", "q8_0")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("name another file", result.stderr)
        self.assertEqual(GgufReader(self.model).tensors["blk.0.attn_q.weight"][1], "q4_1")


if __name__ == "__main__":
    unittest.main(verbosity=2)
