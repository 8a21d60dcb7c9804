// Reads objects as a JSON array, and writes what their projects' schemas say against them.
import { readFileSync } from "node:fs";

const PACKAGES = {
  "keda.sh": "@kubernetes-models/keda",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
  "cert-manager.io": "@kubernetes-models/cert-manager",
};

const problems = [];
for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  const [group, version] = object.apiVersion.split("/");
  const name = `${object.kind}/${object.metadata.name}`;
  const models = await import(`${PACKAGES[group]}/${group}/${version}/${object.kind}`);
  const { apiVersion, kind, ...rest } = object;
  try {
    new models[object.kind](rest).validate();
  } catch (error) {
    problems.push(`${name}: ${error.message}`);
  }
}
process.stdout.write(JSON.stringify(problems));
