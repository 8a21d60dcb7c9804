# All images with one command, from the root of the repository:
#
#   REVISION=$(git rev-parse HEAD) docker buildx bake --file docker/bake.hcl --load
#
# docker/README.md describes how to push the images with attestations, and how to pin their digests in the chart's values.
# No attestation is set here, because --load would fail: the local image store cannot hold attestations.

variable "REGISTRY" {
  default = ""
}

variable "TAG" {
  default = "0.1.0"
}

variable "REVISION" {
  default = "unknown"
}

group "default" {
  targets = ["services", "learner", "rollout", "verifier", "cpu"]
}

target "image" {
  context = "."
  args = {
    VERSION  = TAG
    REVISION = REVISION
  }
}

function "tag" {
  params = [image]
  result = "${REGISTRY}${REGISTRY == "" ? "" : "/"}slipstream/${image}:${TAG}"
}

target "services" {
  inherits   = ["image"]
  dockerfile = "docker/services.Dockerfile"
  tags       = [tag("services")]
}

target "learner" {
  inherits   = ["image"]
  dockerfile = "docker/learner.Dockerfile"
  tags       = [tag("learner")]
}

target "rollout" {
  inherits   = ["image"]
  dockerfile = "docker/rollout.Dockerfile"
  tags       = [tag("rollout")]
}

target "verifier" {
  inherits   = ["image"]
  dockerfile = "docker/verifier.Dockerfile"
  tags       = [tag("verifier")]
}

target "cpu" {
  inherits   = ["image"]
  dockerfile = "docker/cpu.Dockerfile"
  tags       = [tag("cpu")]
}
