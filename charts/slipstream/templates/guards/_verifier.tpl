{{/* Guards on the verifier: its HTTP, and what its rewards need. */}}

{{- define "slipstream.guards.verifier" -}}
{{- $http := .Values.verifier.http -}}
{{- if $http.enabled -}}
{{- if has (toString $http.port) (list (include "slipstream.ports.verifier" .) (include "slipstream.ports.metrics" .)) }}
verifier.http.port is {{ $http.port }}, which the verifier uses for something else: set another, such as 8443
{{- end }}
{{- if and .Values.network.policies (not $http.peers) }}
verifier.http.enabled is true, and the NetworkPolicies let nobody call it: set verifier.http.peers, or network.policies to false
{{- end }}
{{- end -}}
{{- range $file, $_ := .Values.verifier.code -}}
{{- if has $file (list "slipstream.py" "code.py" "json.py" "math.py" "operator.py" "random.py" "re.py" "statistics.py" "string.py" "types.py" "typing.py") }}
verifier.code has {{ $file }}, which would hide a module of that name from the verifier: give it another name, such as my_{{ $file }}
{{- end }}
{{- end -}}
{{- $models := .Values.verifier.models -}}
{{- if and $models.existingClaim $models.hostPath }}
verifier.models has an existingClaim and a hostPath: leave one of them empty
{{- end }}
{{- end -}}

{{/* The rewards of the run, by kind. */}}
{{- define "slipstream.guards.rewards" -}}
{{- include "slipstream.guards.models" . }}
{{- range (include "slipstream.verifier.rewards" (list . "judge") | fromJson).rewards -}}
{{- include "slipstream.guards.judge" (list $ .) }}
{{- end }}
{{- range (include "slipstream.verifier.rewards" (list . "custom") | fromJson).rewards -}}
{{- include "slipstream.guards.custom" (list $ .) }}
{{- end }}
{{- $programs := (include "slipstream.verifier.rewards" (list . "code_tests") | fromJson).rewards -}}
{{- range (include "slipstream.run.tools" . | fromJson).tools -}}
{{- if eq (toString .kind) "python" }}{{ $programs = list . }}{{ end -}}
{{- end -}}
{{- if $programs -}}
{{- $class := .Values.verifier.runtimeClassName -}}
{{- $required := (include "slipstream.run.look" (list . "verifier.isolation.require") | fromJson).value -}}
{{- if and (regexMatch "gvisor|runsc" $class) (has "landlock" (default (list "landlock") $required)) }}
verifier.runtimeClassName is {{ $class }}, which has no Landlock, and the run demands it for programs (code_tests, the tool python): set the run's verifier.isolation.require to [rlimits, seccomp, gvisor]
{{- end }}
{{- end }}
{{- end -}}

{{/* Rewards that are models need torch, their directory and perhaps a GPU. */}}
{{- define "slipstream.guards.models" -}}
{{- $verifier := .Values.verifier -}}
{{- $gpus := int $verifier.gpu.count -}}
{{- $rewards := (include "slipstream.verifier.models" . | fromJson).rewards -}}
{{- if and (eq (include "slipstream.run.value" (list . "verifier.device" "auto")) "cuda") (eq $gpus 0) }}
the run's verifier.device is cuda, and verifier.gpu.count is 0: set it to 1, or the device to auto
{{- end }}
{{- if and (gt $gpus 0) (not $rewards) }}
verifier.gpu.count is {{ $gpus }}, and no reward of the run is a model: set it to 0
{{- end }}
{{- range $rewards -}}
{{- if not (or $verifier.image.repository $.Values.image.repository) }}
the run's reward {{ .name }} is a model, and the image slipstream/services has no torch: set verifier.image.repository to slipstream/verifier (docker/verifier.Dockerfile), or to slipstream/cpu without a GPU
{{- end }}
{{- if and (hasPrefix "cuda" (toString (default "auto" .device))) (eq $gpus 0) }}
the run's reward {{ .name }} has device {{ .device }}, and verifier.gpu.count is 0: set it to 1, or the reward's device to auto
{{- end }}
{{- if not (hasPrefix "/" (toString .path)) }}
the run's reward {{ .name }} has path {{ .path }}, which is nowhere in a pod: set verifier.models.existingClaim to a claim with the model, and the path to one below /models
{{- else if and (hasPrefix "/models/" .path) (ne (include "slipstream.verifier.mounted" (list $ .path)) "true") }}
the run's reward {{ .name }} has path {{ .path }}, where the verifier has no volume: set verifier.models.existingClaim to a claim with the model
{{- end }}
{{- end }}
{{- end -}}

{{/* Takes (list $ REWARD). */}}
{{- define "slipstream.guards.judge" -}}
{{- $root := index . 0 -}}
{{- $reward := index . 1 -}}
{{- range $key := list "api_key_file" "authority" -}}
{{- $path := index $reward $key -}}
{{- if and $path (ne (include "slipstream.verifier.mounted" (list $root $path)) "true") }}
the run's reward {{ $reward.name }} has {{ $key }} {{ $path }}, where the verifier has no volume: set verifier.judge.existingSecret to a Secret that has it, and {{ $key }} to /run/secrets/judge/ and its key
{{- end }}
{{- end }}
{{- if and $root.Values.network.policies (not $root.Values.verifier.judge.peers) }}
the run's reward {{ $reward.name }} asks {{ $reward.url }}, and the NetworkPolicies let nothing out of the verifier: set verifier.judge.peers to where that is
{{- end }}
{{- end -}}

{{/* A custom reward needs its module. An image of the user's is assumed to have it. Takes (list $ REWARD). */}}
{{- define "slipstream.guards.custom" -}}
{{- $values := (index . 0).Values -}}
{{- $reward := index . 1 -}}
{{- $module := regexFind "^[A-Za-z_0-9]+" (toString $reward.function) -}}
{{- $paths := list -}}
{{- range $values.verifier.extraEnv -}}{{- $paths = append $paths .name -}}{{- end -}}
{{- $ours := not (or $values.image.repository (not (has $values.verifier.image.repository (list "" "slipstream/verifier" "slipstream/cpu")))) -}}
{{- if and $reward.function $ours (ne $module "slipstream") (not (hasKey $values.verifier.code (printf "%s.py" $module))) (not (has "PYTHONPATH" $paths)) }}
the run's reward {{ $reward.name }} is {{ $reward.function }}, and the verifier's image has no module {{ $module }}: give its file with --set-file 'verifier.code.{{ $module }}\.py={{ $module }}.py', or verifier.image with one of your own
{{- end }}
{{- if and $reward.entry_point $ours }}
the run's reward {{ $reward.name }} is the entry point {{ $reward.entry_point }}, which needs its package installed: set verifier.image to one of your own, or give the reward as function
{{- end }}
{{- end -}}

{{/* Whether a path of the verifier is below a mount. Takes (list $ PATH). */}}
{{- define "slipstream.verifier.mounted" -}}
{{- $path := printf "%v/" (index . 1) -}}
{{- $mounts := concat (include "slipstream.verifier.mounts" (index . 0) | fromYamlArray) (index . 0).Values.verifier.extraVolumeMounts -}}
{{- $there := false -}}
{{- range $mounts -}}{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $path -}}{{- $there = true -}}{{- end -}}{{- end -}}
{{- $there -}}
{{- end -}}
