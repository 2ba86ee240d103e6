"""The packages that ./dev package made, as users install them: a wheel in an environment of its own, a container image run by
podman, the Debian package in clean roots. Needs root, for chroot; the first run fetches a small Debian 12 with debootstrap.

KVASIR_BUILD is the build folder, KVASIR_PACKAGES has the packages, KVASIR_ROOTS is where the clean root is kept between runs.
"""

import configparser
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/e2e"))
from support import Server, clean_environment, model_path  # noqa: E402

PACKAGES = pathlib.Path(os.environ.get("KVASIR_PACKAGES", SOURCE / "build/package"))
BUILD = pathlib.Path(os.environ.get("KVASIR_BUILD", SOURCE / "build/release"))
ROOTS = pathlib.Path(os.environ.get("KVASIR_ROOTS", SOURCE / "build/package-roots"))
VALIDATE = SOURCE / ".venv-package/bin/kubernetes-validate"
MIRROR = "http://deb.debian.org/debian"
COMPLETION = {"prompt": "A raven is", "max_tokens": 16, "temperature": 0}
# The libraries that a wheel for manylinux leaves to the machine.
OF_THE_MACHINE = re.compile(r"(linux-vdso|ld-linux-x86-64|lib(c|m|rt|dl|pthread|gcc_s|stdc\+\+|resolv|z))\.so")
# What programs beside dpkg keep of the last change.
BACKUPS = {"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/.pwd.lock"}


def run(*command, **options):
    options.setdefault("check", True)
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                            **{**options, "check": False})
    if options["check"] and result.returncode != 0:
        raise AssertionError(f"{command}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result


def only(pattern):
    found = list(PACKAGES.glob(pattern))
    assert len(found) == 1, f"{PACKAGES} has {len(found)} files {pattern}, not 1: run ./dev package"
    return found[0]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Started(Server):
    """A server by any command line."""

    def __init__(self, command, **environment):
        self.start([str(c) for c in command], env={"PATH": os.environ["PATH"], **environment})
        self.wait_ready()

    def answer(self):
        status, _, body = self.ask("POST", "/v1/completions", COMPLETION)
        assert status == 200, body
        return json.loads(body)["choices"]


def expected_answer():
    """That of the binary where it was built."""
    with Started([BUILD / "kvasir", "serve", model_path(), "--port", "0"]) as server:
        return server.answer()


class Root:
    """A root file system that programs run in: a copy, which goes in the end."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        (self.path / "proc").mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "proc", "proc", self.path / "proc")

    def close(self):
        run("umount", self.path / "proc")
        shutil.rmtree(self.path)

    def command(self, *command, user=None):
        """The command line that runs this one inside."""
        return ["chroot", *([f"--userspec={user}"] if user else []), self.path, *command]

    def run(self, *command, **options):
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return run(*self.command(*command), env={"PATH": path, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
                   **options)

    def contents(self):
        """Path -> what makes it what it is, of everything that a package could change."""
        found = {}
        for folder, folders, files in os.walk(self.path):
            inside = pathlib.Path(folder).relative_to(self.path)
            if str(inside) == ".":
                folders[:] = sorted(set(folders) - {"proc", "sys", "dev", "run", "tmp", "mnt"})
            for name in folders + files:
                path = pathlib.Path(folder, name)
                status = path.lstat()
                digest = None
                if stat.S_ISLNK(status.st_mode):
                    digest = os.readlink(path)
                elif stat.S_ISREG(status.st_mode):
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[str(inside / name)] = status.st_mode, status.st_uid, status.st_gid, digest
        return found


def fresh(folder):
    """A folder for a root, with nothing in it."""
    path = ROOTS / folder
    if path.exists():
        run("umount", path / "proc", check=False)
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def clean_debian(depends):
    """A copy of the smallest Debian 12, with these packages."""
    base = ROOTS / ("base-" + hashlib.sha256(depends.encode()).hexdigest()[:12])
    if not base.exists():
        making = fresh("making")
        print(f"making {base}", file=sys.stderr)
        run("debootstrap", "--variant=minbase", "bookworm", making, MIRROR)
        shutil.copy("/etc/resolv.conf", making / "etc/resolv.conf")
        root = Root(making)
        try:
            # Without services that an installation would start.
            root.run("apt-get", "update")
            root.run("apt-get", "satisfy", "-y", "--no-install-recommends", depends)
            root.run("apt-get", "clean")
        finally:
            run("umount", making / "proc")
        making.rename(base)
    copy = fresh("copy")
    run("cp", "-a", "--reflink=auto", base, copy)
    return Root(copy)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.venv = pathlib.Path(cls.folder.name) / "venv"
        run("/usr/bin/python3", "-m", "venv", cls.venv)
        run(cls.venv / "bin/pip", "install", "--no-index", "--no-deps", only("kvasir-*.whl"), env=clean_environment())
        (cls.site,) = (cls.venv / "lib").glob("python3*/site-packages")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_serves(self):
        with Started([self.venv / "bin/kvasir", "serve", model_path(), "--port", "0"]) as server:
            self.assertEqual(server.answer(), expected_answer())
            self.assertEqual(server.stop(), 0)
        self.assertEqual(run(self.venv / "bin/python", "-m", "kvasir", "--version").stdout,
                         run(BUILD / "kvasir", "--version").stdout)

    def test_carries_its_libraries_and_their_licences(self):
        loaded = re.findall(r"^\s*(\S+) => (\S+)", run("ldd", self.site / "kvasir/kvasir").stdout, re.MULTILINE)
        carried = {name for name, path in loaded if pathlib.Path(path).resolve().parent == self.site / "kvasir.libs"}
        self.assertGreater(len(carried), 10)
        for name, path in loaded:
            if name not in carried:
                self.assertRegex(name, OF_THE_MACHINE, path)
        (info,) = self.site.glob("kvasir-*.dist-info")
        licences = {path.name for path in (info / "licenses").iterdir()}
        self.assertLessEqual({"kvasir", "xgrammar", "libboost1.81-dev", "libssl3"}, licences)
        for path in (self.site / "kvasir.libs").iterdir():
            name = re.sub(r"^([^.]*)-[0-9a-f]{8}\.", r"\1.", path.name)
            packages = re.findall(r"^([^:,\n]+)", run("dpkg-query", "-S", f"*/{name}").stdout, re.MULTILINE)
            self.assertTrue(licences & set(packages), (name, packages))

    def test_runs_where_nothing_is_installed(self):
        root = clean_debian("adduser")
        self.addCleanup(root.close)
        for folder in ("kvasir", "kvasir.libs"):
            shutil.copytree(self.site / folder, root.path / "opt" / folder)
        self.assertEqual(root.run("/opt/kvasir/kvasir", "--version").stdout, run(BUILD / "kvasir", "--version").stdout)
        # The binary that was not prepared for it does not.
        shutil.copy(BUILD / "kvasir", root.path / "opt/unprepared")
        self.assertNotEqual(root.run("/opt/unprepared", "--version", check=False).returncode, 0)


class Podman:
    """Runs podman with images and containers of its own, which go in the end."""

    def __init__(self):
        self.store = fresh("podman")
        self.runs = tempfile.TemporaryDirectory()

    def command(self, *arguments):
        # crun refuses to run where version 2 of cgroups is beside version 1 and has controllers.
        alone = "if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec \"$@\""
        return ["unshare", "--mount", "sh", "-c", alone, "sh", "podman", "--root", self.store, "--runroot", self.runs.name,
                "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", *arguments]

    def __call__(self, *arguments, **options):
        return run(*self.command(*arguments), **options)

    def close(self):
        self("rm", "--all", "--force", check=False)
        self.runs.cleanup()
        shutil.rmtree(self.store)


class Container(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.podman = Podman()
        cls.addClassCleanup(cls.podman.close)
        cls.podman("build", "--format", "docker", "-t", "kvasir:test", PACKAGES / "image")
        models = tempfile.TemporaryDirectory()
        cls.addClassCleanup(models.cleanup)
        cls.models = pathlib.Path(models.name)
        cls.models.chmod(0o755)
        shutil.copy(model_path(), cls.models / "model.gguf")
        (cls.models / "model.gguf").chmod(0o644)

    def test_has_the_binary_its_libraries_certificates_and_licences(self):
        path = fresh("container")
        self.addCleanup(shutil.rmtree, path)
        run(SOURCE / "tools/make_rootfs.sh", BUILD, path, umask=0o077)
        self.assertEqual([p.name for p in (path / "usr/bin").iterdir()], ["kvasir"])
        licences = path / "usr/share/doc/kvasir/licenses"
        self.assertLessEqual({"libc6", "libssl3", "ca-certificates"}, {p.name for p in licences.iterdir()})
        self.assertIn("BEGIN CERTIFICATE", (path / "etc/ssl/certs/ca-certificates.crt").read_text(encoding="utf-8"))
        self.assertEqual(os.readlink(path / "usr/lib/ssl/cert.pem"), "/etc/ssl/certs/ca-certificates.crt")
        self.assertEqual([p for p in path.rglob("*") if not p.is_symlink() and not p.stat().st_mode & stat.S_IROTH], [])

    def test_serves_as_its_user_with_nothing_writable_and_tells_its_health(self):
        limits = [f"--ulimit={name}={value}:{value}" for name, value in
                  (("nofile", resource.getrlimit(resource.RLIMIT_NOFILE)[1]), ("nproc", 4096))]
        command = self.podman.command(
            "run", "--rm", "--name", "kvasir", "--network", "host", "--read-only", "--read-only-tmpfs=false", "--cap-drop=all",
            "--security-opt=no-new-privileges", *limits, "-e", f"KVASIR_PORT={free_port()}", "-v",
            f"{self.models}:/var/lib/kvasir:ro", "kvasir:test")
        with Started(command) as server:
            pid = self.podman("inspect", "--format", "{{.State.Pid}}", "kvasir").stdout.strip()
            status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            for line in ("Uid:\t65532\t", "Gid:\t65532\t", "CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n"):
                self.assertIn(line, status)
            mounts = pathlib.Path(f"/proc/{pid}/mounts").read_text(encoding="utf-8")
            self.assertRegex(mounts, r"(?m)^\S+ / \S+ ro,")
            self.assertEqual(server.answer(), expected_answer())
            self.podman("healthcheck", "run", "kvasir")
            self.assertNotEqual(self.podman("exec", "kvasir", "/bin/sh", "-c", "true", check=False).returncode, 0)
            self.assertEqual(server.stop(), 0)
        result = self.podman("run", "--rm", "--network", "host", *limits, "kvasir:test", "health", check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("kvasir health: ", result.stderr)


class Manifests(unittest.TestCase):
    def check(self, manifests, version):
        """What the API's schemas of this version of Kubernetes say of the manifests."""
        return run(VALIDATE, "--strict", "--kubernetes-version", version, *manifests, check=False)

    def test_are_what_kubernetes_takes(self):
        manifests = sorted(set((SOURCE / "deploy/kubernetes").iterdir()) - {SOURCE / "deploy/kubernetes/kustomization.yaml"})
        for version in ("1.25", "1.29", "1.33", "1.37"):
            found = self.check(manifests, version)
            self.assertEqual(found.returncode, 0, found.stdout)
            # The ServiceMonitor is the Prometheus operator's.
            self.assertEqual(re.findall(r"(?m)^WARN .* kind (\w+)", found.stdout), ["ServiceMonitor"], found.stdout)
            self.assertEqual(found.stdout.count(" passed for resource "), 7, found.stdout)
        text = (SOURCE / "deploy/kubernetes/deployment.yaml").read_text(encoding="utf-8")
        for right, wrong in (("livenessProbe:", "livenesProbe:"), ("replicas: 2", "replicas: two")):
            with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as planted:
                planted.write(text.replace(right, wrong))
                planted.flush()
                self.assertNotEqual(self.check([planted.name], "1.29").returncode, 0, wrong)


class Service:
    """The unit as it is installed in a root."""

    def __init__(self, root):
        self.root = root
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str
        parser.read(root.path / "lib/systemd/system/kvasir.service", encoding="utf-8")
        self.settings = parser["Service"]

    def start(self):
        """As systemd would, but for the confinement."""
        user = self.settings["User"]
        uid, gid = map(int, self.root.run("sh", "-c", f"id -u {user}; id -g {user}").stdout.split())
        cache = self.root.path / "var/cache" / self.settings["CacheDirectory"]
        cache.mkdir(mode=0o700, exist_ok=True)
        os.chown(cache, uid, gid)
        environment = dict(pair.split("=", 1) for pair in self.settings["Environment"].split())
        command = self.root.command(*shlex.split(self.settings["ExecStart"]), user=f"{user}:{self.settings['Group']}")
        return Started(command, **environment)


class DebianPackage(unittest.TestCase):
    def setUp(self):
        self.deb = only("kvasir_*.deb")
        self.depends = run("dpkg-deb", "-f", self.deb, "Depends").stdout.strip()

    def start_clean(self, more=""):
        """A root that has what the package depends on, and no more than this beside."""
        self.root = clean_debian(self.depends + more)
        self.addCleanup(self.root.close)

    def dpkg(self, *arguments):
        return self.root.run("dpkg", *arguments)

    def install(self, deb):
        shutil.copy(deb, self.root.path / "mnt/kvasir.deb")
        return self.dpkg("-i", "/mnt/kvasir.deb")

    def newer(self):
        """The same package, of a higher version."""
        tree = self.root.path / "mnt/newer"
        run("dpkg-deb", "-R", self.deb, tree)
        control = tree / "DEBIAN/control"
        control.write_text(re.sub(r"(?m)^Version: .*", "Version: 99.0", control.read_text(encoding="utf-8")), encoding="utf-8")
        run("dpkg-deb", "--root-owner-group", "-b", tree, self.root.path / "mnt/newer.deb")
        shutil.rmtree(tree)
        return self.root.path / "mnt/newer.deb"

    def configure(self, port):
        """What an operator does after the installation."""
        config = self.root.path / "etc/kvasir/kvasir.yaml"
        text = config.read_text(encoding="utf-8")
        self.assertIn("\nport: 8000\n", text)
        config.write_text(text.replace("\nport: 8000\n", f"\nport: {port}\n"), encoding="utf-8")
        model = self.root.path / "var/lib/kvasir/model.gguf"
        shutil.copy(model_path(), model)
        model.chmod(0o644)

    def test_install_serve_upgrade_remove_purge(self):
        self.start_clean()
        before = self.root.contents()
        self.install(self.deb)
        user = self.root.run("getent", "passwd", "kvasir").stdout
        self.assertRegex(user, r"^kvasir:[^:]*:\d+:\d+:.*:/var/lib/kvasir:/usr/sbin/nologin\n$")
        self.assertNotEqual(self.root.contents(), before)

        port = free_port()
        self.configure(port)
        with Service(self.root).start() as server:
            self.assertEqual(server.port, port)
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
            self.assertIn(f"Uid:\t{user.split(':')[2]}\t", status)
            first = server.answer()
            self.assertEqual(first, expected_answer())

            # The running server goes on with the old files, until the restart.
            self.install(self.newer())
            self.assertEqual(self.dpkg("--status", "kvasir").stdout.split("Version: ")[1].split()[0], "99.0")
            self.assertEqual(server.answer(), first)
            self.assertTrue(os.readlink(f"/proc/{server.process.pid}/exe").endswith(" (deleted)"))
            self.assertEqual(server.stop(), 0)
        with Service(self.root).start() as server:
            self.assertEqual(server.port, port)  # the edited file has stayed
            self.assertFalse(os.readlink(f"/proc/{server.process.pid}/exe").endswith(" (deleted)"))
            self.assertEqual(server.answer(), first)
            self.assertEqual(server.stop(), 0)

        self.dpkg("--remove", "kvasir")
        self.assertFalse((self.root.path / "usr/bin/kvasir").exists())
        self.assertIn(f"port: {port}", (self.root.path / "etc/kvasir/kvasir.yaml").read_text(encoding="utf-8"))
        self.dpkg("--purge", "kvasir")
        # Models are the operator's.
        self.assertEqual([p.name for p in (self.root.path / "var/lib/kvasir").iterdir()], ["model.gguf"])
        shutil.rmtree(self.root.path / "var/lib/kvasir")
        self.assert_same(before, self.root.contents())

    def assert_same(self, before, after):
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        of_dpkg = {path for path in changed if path.startswith(("var/lib/dpkg/", "var/log/")) or path == "var/lib/dpkg"}
        self.assertEqual(changed - of_dpkg - BACKUPS, set())
        self.assertFalse([path for path in of_dpkg if "kvasir" in path])

    def test_units(self):
        self.start_clean(", systemd")
        self.install(self.deb)
        units = [f"/lib/systemd/system/kvasir.{kind}" for kind in ("service", "socket")]
        found = self.root.run("systemd-analyze", "verify", "--man=no", *units)
        self.assertEqual(found.stdout + found.stderr, "")
        security = self.root.run("systemd-analyze", "security", "--offline=yes", "--threshold=20", units[0])
        self.assertRegex(security.stdout, r"Overall exposure level for kvasir.service: [01]\.\d OK")

    def test_under_systemd(self):
        self.start_clean(", systemd-sysv")
        shutil.copy(self.deb, self.root.path / "mnt/kvasir.deb")
        self.newer()
        model = self.root.path / "var/lib/kvasir/model.gguf"
        model.parent.mkdir()
        shutil.copy(model_path(), model)
        model.chmod(0o644)
        shutil.copy(SOURCE / "tests/package/booted.sh", self.root.path / "mnt/booted.sh")
        unit = self.root.path / "etc/systemd/system/booted.service"
        unit.write_text("[Service]\nType=oneshot\nExecStart=/bin/bash /mnt/booted.sh\n"
                        "StandardOutput=file:/mnt/seen\nStandardError=file:/mnt/seen\nExecStopPost=/bin/systemctl --no-block poweroff\n",
                        encoding="utf-8")
        wants = self.root.path / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / "booted.service").symlink_to("../booted.service")
        run("umount", self.root.path / "proc")
        try:
            run("systemd-nspawn", "--boot", "--register=no", "--keep-unit", "--console=pipe", "-D", self.root.path, timeout=300)
        finally:
            run("mount", "-t", "proc", "proc", self.root.path / "proc")
        text = (self.root.path / "mnt/seen").read_text(encoding="utf-8")
        seen = dict(re.findall(r"(?m)^(\w+):\s+(.*)$", text))
        (choice,) = expected_answer()
        answer = f'"text":{json.dumps(choice["text"])}'
        wanted = {
            "installed": "inactive after 0 restarts", "started": "active after 0 restarts", "answer": answer,
            "NoNewPrivs": "1", "Seccomp": "2", "CapEff": "0000000000000000", "reloaded": "active after 0 restarts",
            "upgraded": "active after 0 restarts", "process": "another", "crashed": "active after 1 restarts",
            "watched": "active after 0 restarts", "frozen": "active after 1 restarts",
            "waiting": "inactive after 0 restarts", "first": answer, "meanwhile": answer, "complaints": "0",
            "mistaken": "install ok installed", "mended": "active after 0 restarts",
            "purged": "inactive after 0 restarts"}
        self.assertEqual({name: seen.get(name) for name in wanted}, wanted, text)

    def test_control(self):
        for member, mode in (("usr/bin/kvasir", "-rwxr-xr-x"), ("etc/kvasir/kvasir.yaml", "-rw-r--r--")):
            listed = run("dpkg-deb", "--contents", self.deb).stdout
            self.assertRegex(listed, rf"(?m)^{mode} root/root .* \./{member}$")
        for package in ("adduser", "libc6 (>= ", "libssl3 (>= ", "libfmt9 (>= "):
            self.assertIn(package, self.depends)
        self.start_clean()
        self.install(self.deb)
        self.assertEqual(self.root.run("dpkg-query", "-W", "-f", "${Conffiles}", "kvasir").stdout.split()[0],
                         "/etc/kvasir/kvasir.yaml")
        self.assertEqual(self.dpkg("--verify", "kvasir").stdout, "")

    def test_only_the_server_reads_the_configuration(self):
        def seen():
            return self.root.run("stat", "-c", "%A %U:%G", "/etc/kvasir/kvasir.yaml").stdout.strip()

        self.start_clean()
        self.install(self.deb)
        self.assertEqual(seen(), "-rw-r----- root:kvasir")
        self.root.run("chmod", "0644", "/etc/kvasir/kvasir.yaml")
        self.install(self.deb)
        self.assertEqual(seen(), "-rw-r----- root:kvasir")
        self.root.run("dpkg-statoverride", "--update", "--add", "root", "adm", "0644", "/etc/kvasir/kvasir.yaml")
        self.install(self.newer())
        self.assertEqual(seen(), "-rw-r--r-- root:adm")
        # With the package's own group, and of a file of another package: dpkg works after the purge.
        self.root.run("dpkg-statoverride", "--remove", "/etc/kvasir/kvasir.yaml")
        self.root.run("dpkg-statoverride", "--update", "--add", "root", "kvasir", "0660", "/etc/kvasir/kvasir.yaml")
        self.root.run("dpkg-statoverride", "--add", "kvasir", "root", "0755", "/usr/bin/mawk")
        self.install(self.deb)
        self.assertEqual(seen(), "-rw-rw---- root:kvasir")
        self.dpkg("--purge", "kvasir")
        self.assertNotIn("kvasir", (self.root.path / "var/lib/dpkg/statoverride").read_text(encoding="utf-8"))
        self.install(self.deb)
        (self.root.path / "etc/kvasir/kvasir.yaml").unlink()
        self.install(self.deb)  # what is not there is no fault
        self.assertIn("ok installed", self.dpkg("--status", "kvasir").stdout)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what is mounted is unmounted
    unittest.main(verbosity=2)
