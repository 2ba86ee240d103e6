"""What deploy/ says agrees with the binary, and with itself: flags, ports, paths, times, users."""

import configparser
import copy
import pathlib
import re
import sys
import unittest

import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/e2e"))
from support import Server, run  # noqa: E402

DEPLOY = SOURCE / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MONITOR = "service-monitor.yaml"


def documents():
    """(kind, name) -> document, of the resources of kustomization.yaml, and that of the Prometheus operator."""
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    found = {}
    for name in [*listed, MONITOR]:
        for document in yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8")):
            found[document["kind"], document["metadata"]["name"]] = document
    return found


def flags_of_serve():
    """Flag -> its default, if the help has one."""
    text = run("serve", "--help").stdout
    return dict(re.findall(r"(?m)^ +(?:-\w,)?(--[a-z-]+)(?:[^=\n]*=(\S+))?", text))


def unit(name):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(DEPLOY / "systemd" / name, encoding="utf-8")
    return parser


def mistakes(docs, flags):
    """What does not agree among the manifests, one line each."""
    found = []

    def check(right, what):
        if not right:
            found.append(what)

    deployment = docs["Deployment", "kvasir"]["spec"]
    template = deployment["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    given = dict(re.fullmatch(r"(--[a-z-]+)=(.*)", a).groups() for a in container["args"][2:])

    def selects(selector, of, what):
        check(selector.items() <= of.items(), f"{what} selects nothing")

    for flag in given:
        check(flag in flags, f"{flag} is no flag of kvasir serve")
    check(given.get("--port") == str(ports["http"]), "--port is not the port http")
    check(given.get("--admin-port") == str(ports["admin"]), "--admin-port is not the port admin")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        check(container[probe]["httpGet"]["port"] in ports, f"{probe} names no port")
    seconds = sum(float(given.get(flag, "nan")) for flag in ("--drain-delay", "--shutdown-timeout"))
    check(pod["terminationGracePeriodSeconds"] >= seconds + 5, "the grace period is shorter than the server's end takes")

    selects(deployment["selector"]["matchLabels"], labels, "the Deployment")
    selects(docs["PodDisruptionBudget", "kvasir"]["spec"]["selector"]["matchLabels"], labels, "the PodDisruptionBudget")
    selects(docs["NetworkPolicy", "kvasir"]["spec"]["podSelector"]["matchLabels"], labels, "the NetworkPolicy")
    services = [d for (kind, _), d in docs.items() if kind == "Service"]
    for service in services:
        name = service["metadata"]["name"]
        selects(service["spec"]["selector"], labels, f"the Service {name}")
        for port in service["spec"]["ports"]:
            check(port["targetPort"] in ports, f"the Service {name} names no port of the container")
    monitor = docs["ServiceMonitor", "kvasir"]["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    monitored = [s for s in services if wanted <= s["metadata"]["labels"].items()]
    check([s["metadata"]["name"] for s in monitored] == ["kvasir-admin"], "the ServiceMonitor finds another service")
    for endpoint in monitor["endpoints"]:
        names = [port["name"] for service in monitored for port in service["spec"]["ports"]]
        check(endpoint["port"] in names, "the ServiceMonitor names no port of its service")
    for rule in docs["NetworkPolicy", "kvasir"]["spec"]["ingress"]:
        check(all(port["port"] in ports for port in rule["ports"]), "the NetworkPolicy names no port of the container")
        check(rule.get("from") or [p["port"] for p in rule["ports"]] == ["http"], "all may reach the admin port")

    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for volume in pod["volumes"]:
        check(volume["name"] in mounts, f"the volume {volume['name']} is not mounted")
        check(("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in docs, "there is no such claim")
    check(any(container["args"][1].startswith(path + "/") for path in mounts.values()), "the model is on no volume")

    user = re.search(r"(?m)^USER (\d+):(\d+)$", (DEPLOY / "container/Containerfile").read_text(encoding="utf-8")).groups()
    context = pod["securityContext"]
    check((str(context["runAsUser"]), str(context["runAsGroup"])) == user, "the pod's user is not the image's")
    check(context["runAsNonRoot"] is True, "the pod may run as root")
    own = container["securityContext"]
    check(own["readOnlyRootFilesystem"] is True and own["allowPrivilegeEscalation"] is False
          and own["capabilities"]["drop"] == ["ALL"], "the container may do more than it needs")
    check(container["resources"]["limits"] == container["resources"]["requests"], "limits are not what is requested")
    return found


class Kubernetes(unittest.TestCase):
    def test_every_file_is_listed_and_is_a_resource(self):
        listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
        self.assertEqual(sorted(listed["resources"] + ["kustomization.yaml", MONITOR]),
                         sorted(p.name for p in KUBERNETES.iterdir()))
        # `kubectl apply -k` fails where the cluster does not know one of the kinds.
        for name in listed["resources"]:
            for document in yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8")):
                self.assertIn(document["apiVersion"], ("v1", "apps/v1", "policy/v1", "networking.k8s.io/v1"), name)
        (image,) = listed["images"]
        (container,) = documents()["Deployment", "kvasir"]["spec"]["template"]["spec"]["containers"]
        self.assertEqual(container["image"], image["name"])
        self.assertEqual(f"kvasir {image['newTag']}\n", run("--version").stdout)
        for (kind, name), document in documents().items():
            self.assertTrue(document["apiVersion"], (kind, name))
            if kind == "Namespace":
                self.assertEqual(name, listed["namespace"])
            else:  # the list sets it
                self.assertNotIn("namespace", document["metadata"], (kind, name))
        self.assertIn(("Namespace", listed["namespace"]), documents())

    def test_the_steps_of_the_page_can_be_done_in_their_order(self):
        page = (SOURCE / "docs/operating.md").read_text(encoding="utf-8")
        block = next(b for b in re.findall(r"(?s)```sh\n(.*?)```", page) if "namespace.yaml" in b)
        steps = [line.split("#")[0].split() for line in block.splitlines() if line.startswith("kubectl ")]
        known = set()  # namespaces
        for step in steps:
            if "-n" in step:
                self.assertIn(step[step.index("-n") + 1], known, step)
            for word in step:
                self.assertTrue(not word.startswith("deploy/") or (SOURCE / word).exists(), word)
            if "deploy/kubernetes/namespace.yaml" in step:
                known.add("kvasir")
        made = [" ".join(step) for step in steps]
        before = [i for i, step in enumerate(made) if "create secret" in step or "models.yaml" in step]
        self.assertEqual(len(before), 2)
        self.assertLess(max(before), made.index("kubectl apply -k deploy/kubernetes"))

    def test_names_ports_flags_and_times_agree(self):
        self.assertEqual(mistakes(documents(), flags_of_serve()), [])

    def test_what_does_not_agree_is_seen(self):
        def planted(plant):
            docs = copy.deepcopy(documents())
            plant(docs, docs["Deployment", "kvasir"]["spec"]["template"]["spec"])
            return mistakes(docs, flags_of_serve())

        def arg(index, text):
            return lambda docs, pod: pod["containers"][0]["args"].__setitem__(index, text)

        faults = [
            (arg(3, "--port=9000"), "--port is not the port http"),
            (arg(6, "--drain-dely=10"), "--drain-dely is no flag of kvasir serve"),
            (arg(2, "--hostt=0.0.0.0"), "--hostt is no flag of kvasir serve"),
            (arg(7, "--shutdown-timeout=300"), "the grace period is shorter than the server's end takes"),
            (arg(1, "/models/model.gguf"), "the model is on no volume"),
            (lambda docs, pod: pod["containers"][0]["livenessProbe"]["httpGet"].update(port="amdin"),
             "livenessProbe names no port"),
            (lambda docs, pod: docs["PodDisruptionBudget", "kvasir"]["spec"]["selector"].update(matchLabels={"app": "kvasir"}),
             "the PodDisruptionBudget selects nothing"),
            (lambda docs, pod: docs["Service", "kvasir-admin"]["metadata"]["labels"].pop("app.kubernetes.io/component"),
             "the ServiceMonitor finds another service"),
            (lambda docs, pod: docs["NetworkPolicy", "kvasir"]["spec"]["ingress"][1].pop("from"),
             "all may reach the admin port"),
            (lambda docs, pod: pod["securityContext"].update(runAsUser=1000), "the pod's user is not the image's"),
        ]
        for plant, seen in faults:
            self.assertIn(seen, planted(plant))

    def test_the_server_starts_with_these_flags_and_answers_the_probes(self):
        docs = documents()
        (container,) = docs["Deployment", "kvasir"]["spec"]["template"]["spec"]["containers"]
        # On free ports, of which Server gives the first.
        flags = [a for a in container["args"][2:] if not re.match(r"--(admin-)?port=", a)]
        with Server(*flags, "--admin-port=0", environment={"KVASIR_API_KEY": "a"}) as server:
            admin = next(line for line in server.log if line.startswith("admin port: "))
            port_of = {"http": server.port, "admin": int(admin.rsplit(":", 1)[1])}
            asked = [container[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
            asked += docs["ServiceMonitor", "kvasir"]["spec"]["endpoints"]
            for get in asked:
                server.port = port_of[get["port"]]
                self.assertEqual(server.ask("GET", get["path"])[0], 200, get)
            server.signal()
            server.signal()
            self.assertEqual(server.wait(), 0)


class Systemd(unittest.TestCase):
    def test_units_agree_with_the_binary_and_with_each_other(self):
        service, port = unit("kvasir.service")["Service"], unit("kvasir.socket")["Socket"]
        config = yaml.safe_load((DEPLOY / "kvasir.yaml").read_text(encoding="utf-8"))
        flags = flags_of_serve()
        command = service["ExecStart"].split()
        self.assertEqual(command[:2], ["/usr/bin/kvasir", "serve"])
        self.assertIn("--config", flags)
        for name in config:
            self.assertIn("--" + name, flags)
        self.assertEqual(port["ListenStream"], f"{config['host']}:{config['port']}")
        ends = float(flags["--shutdown-timeout"]) + float(flags["--drain-delay"])
        self.assertGreater(float(service["TimeoutStopSec"]), ends + 5)

    def test_what_the_configuration_only_mentions_is_right_too(self):
        text = (DEPLOY / "kvasir.yaml").read_text(encoding="utf-8")
        mentioned = re.findall(r"(?m)^#([a-z-]+): ", text)
        self.assertGreater(len(mentioned), 1)
        for name in mentioned:
            self.assertIn("--" + name, flags_of_serve())


if __name__ == "__main__":
    unittest.main(verbosity=2)
