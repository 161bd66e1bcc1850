"""The files of examples/cluster: scripts that bash accepts, and YAML with the fields and types of the Kubernetes API (batch/v1
Job, v1 Service) and of kubeflow.org/v2beta1 MPIJob. The schema has the fields that the files use, and those that must be there."""
import pathlib
import re
import subprocess
import unittest

try:
    import yaml
except ImportError:
    yaml = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "cluster"


class Field:
    """A type, a list of one, a dict of fields, or an enumeration; `must` if it is required."""

    def __init__(self, kind, must=False):
        self.kind, self.must = kind, must


def must(kind):
    return Field(kind, must=True)


LABELS = {"*": str}
METADATA = {"name": must(str), "labels": LABELS}
CONTAINER = {
    "name": must(str), "image": must(str), "command": [str], "args": [str],
    "env": [{"name": must(str), "value": str}],
    "resources": {"requests": {"*": str}, "limits": {"*": str}},
    "volumeMounts": [{"name": must(str), "mountPath": must(str), "readOnly": bool}],
}
POD = {
    "metadata": {"labels": LABELS},
    "spec": must({
        "subdomain": str, "restartPolicy": {"Never", "OnFailure", "Always"}, "terminationGracePeriodSeconds": int,
        "containers": must([CONTAINER]),
        "volumes": [{"name": must(str), "persistentVolumeClaim": {"claimName": must(str)}, "secret": {"secretName": must(str)}}],
    }),
}
REPLICA = {"replicas": int, "restartPolicy": {"Never", "OnFailure"}, "template": must(POD)}
SCHEMAS = {
    ("v1", "Service"): {
        "clusterIP": str, "publishNotReadyAddresses": bool, "selector": must({"*": str}), "ports": [{"port": must(int)}]},
    ("batch/v1", "Job"): {
        "completionMode": {"Indexed", "NonIndexed"}, "completions": int, "parallelism": int, "backoffLimit": int,
        "podFailurePolicy": {"rules": must([{
            "action": must({"FailJob", "Ignore", "Count"}),
            "onExitCodes": {"containerName": str, "operator": must({"In", "NotIn"}), "values": must([int])}}])},
        "template": must(POD)},
    ("kubeflow.org/v2beta1", "MPIJob"): {
        "slotsPerWorker": int,
        "runPolicy": {"cleanPodPolicy": {"None", "Running", "All"}, "backoffLimit": int},
        "mpiReplicaSpecs": must({"Launcher": must(REPLICA), "Worker": REPLICA})},
}


def problems(value, schema, path):
    """What is wrong with a value, one text each."""
    if isinstance(schema, Field):
        return problems(value, schema.kind, path)
    if isinstance(schema, set):
        return [] if value in schema else [f"{path}: {value!r} is none of {sorted(schema)}"]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{path}: no list"]
        return [text for i, item in enumerate(value) for text in problems(item, schema[0], f"{path}[{i}]")]
    if not isinstance(schema, dict):
        return [] if type(value) is schema else [f"{path}: {value!r} is no {schema.__name__}"]
    if not isinstance(value, dict):
        return [f"{path}: no mapping"]
    found = [f"{path}.{key}: missing" for key, kind in schema.items()
             if isinstance(kind, Field) and kind.must and key not in value]
    for key, item in value.items():
        if key not in schema and "*" not in schema:
            found.append(f"{path}.{key}: unknown")
        else:
            found += problems(item, schema.get(key, schema.get("*")), f"{path}.{key}")
    return found


def check(document):
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in SCHEMAS:
        return [f"unknown kind {kind}"]
    whole = {"apiVersion": str, "kind": str, "metadata": must(METADATA), "spec": must(SCHEMAS[kind])}
    return problems(document, whole, kind[1])


def flag(script, name):
    return int(re.search(rf"--?{name} (\d+)", script).group(1))


@unittest.skipIf(yaml is None, "PyYAML is not installed")
class Yaml(unittest.TestCase):
    def documents(self, name):
        return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))

    def test_all_files_fit_the_schema(self):
        names = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml"))
        self.assertEqual(names, ["kubernetes/job.yaml", "mpijob/mpijob.yaml"])
        for name in names:
            for document in self.documents(name):
                self.assertEqual(check(document), [], name)

    def test_the_schema_finds_mistakes(self):
        def changed(change):
            job = self.documents("kubernetes/job.yaml")[1]
            change(job["spec"])
            return check(job)

        self.assertEqual(changed(lambda spec: spec.update(completions="4")), ["Job.spec.completions: '4' is no int"])
        self.assertEqual(changed(lambda spec: spec.update(completion=4)), ["Job.spec.completion: unknown"])
        self.assertEqual(changed(lambda spec: spec.pop("template")), ["Job.spec.template: missing"])
        container = "Job.spec.template.spec.containers[0]"
        self.assertEqual(changed(lambda spec: spec["template"]["spec"]["containers"][0]["env"][0].update(value=4)),
                         [f"{container}.env[0].value: 4 is no str"])

    def test_the_job_has_a_rank_for_each_pod(self):
        service, job = self.documents("kubernetes/job.yaml")
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        container = pod["containers"][0]
        env = {row["name"]: row["value"] for row in container["env"]}
        self.assertEqual({spec["completions"], spec["parallelism"], int(env["WORLD_SIZE"]), flag(container["args"][0], "dp")}, {4})
        self.assertEqual(env["MASTER_ADDR"], f"{job['metadata']['name']}-0.{service['metadata']['name']}")
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        self.assertEqual(service["spec"]["selector"]["job-name"], job["metadata"]["name"])
        # A failure policy works with Never only.
        self.assertEqual(pod["restartPolicy"], "Never")

    def test_the_mpijob_has_a_rank_for_each_slot(self):
        (job,) = self.documents("mpijob/mpijob.yaml")
        replicas = job["spec"]["mpiReplicaSpecs"]
        script = replicas["Launcher"]["template"]["spec"]["containers"][0]["args"][0]
        ranks = job["spec"]["slotsPerWorker"] * replicas["Worker"]["replicas"]
        self.assertEqual(flag(script, "n"), ranks)
        self.assertEqual(flag(script, "tp") * flag(script, "dp"), ranks)

    def test_bash_accepts_the_scripts_inside(self):
        for name in ("kubernetes/job.yaml", "mpijob/mpijob.yaml"):
            for script in re.findall(r"- \|\n(.*?)\n *(?:env:|Worker:)", (FOLDER / name).read_text(encoding="utf-8"), re.S):
                subprocess.run(["bash", "-n"], input=script, text=True, check=True)


class Sbatch(unittest.TestCase):
    def test_bash_accepts_the_scripts(self):
        scripts = sorted(FOLDER.rglob("*.sbatch"))
        self.assertEqual([path.name for path in scripts], ["once.sbatch", "requeue.sbatch"])
        for path in scripts:
            subprocess.run(["bash", "-n", path], check=True)

    def test_the_page_shows_the_script(self):
        page = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
        shown = re.search(r"```bash\n(.*?)```", page, re.S).group(1)
        self.assertEqual(shown, (FOLDER / "slurm" / "requeue.sbatch").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
