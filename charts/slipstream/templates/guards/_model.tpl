{{/* Guards on the model and on images. */}}

{{- define "slipstream.guards.model" -}}
{{- $model := .Values.model -}}
{{- $path := (include "slipstream.run.look" (list . "model.path") | fromJson).value -}}
{{- $tiny := (include "slipstream.run.look" (list . "model.tiny") | fromJson).value -}}
{{- $warmup := (include "slipstream.run.look" (list . "warmup") | fromJson).value -}}
{{- if eq $model.mode "warmup" -}}
{{- if not (kindIs "invalid" $path) }}
model.mode is warmup, which makes the run's model.tiny, and the run names model.path {{ $path }}: set model.mode to volume (or download), which puts the model where the pods find it
{{- end }}
{{- else -}}
{{- if not (kindIs "invalid" $warmup) }}
the run has `warmup`, and model.mode {{ $model.mode }} makes no cold start: make the model with `slipstream warmup`, give it with model.mode volume, and leave `warmup` out of the run
{{- end }}
{{- if and (eq $model.mode "download") (not (kindIs "invalid" $tiny)) }}
the run has model.tiny, and model.mode is download: leave model.tiny out of the run, or set model.mode to warmup
{{- end }}
{{- end -}}
{{- if and (eq $model.mode "volume") (eq (empty $model.volume.existingClaim) (empty $model.volume.hostPath)) }}
model.mode is volume, which needs one of model.volume.existingClaim and model.volume.hostPath: set one of them
{{- end }}
{{- if eq $model.mode "download" -}}
{{- if not $model.download.repository }}
model.mode is download, without a repository: set model.download.repository
{{- end }}
{{- if not $model.download.revision }}
model.mode is download, without a revision, and two pods could load two models: set model.download.revision to a commit
{{- end }}
{{- if and .Values.network.policies (not .Values.network.egress.huggingface) }}
model.mode is download, and the NetworkPolicies let nothing out: set network.egress.huggingface to true, or give the model with model.mode volume
{{- end }}
{{- end -}}
{{- if ne $model.mode "volume" -}}
{{- if and (eq $model.cache.kind "claim") (not $model.cache.existingClaim) }}
model.cache.kind is claim, without one: set model.cache.existingClaim
{{- end }}
{{- if and (eq $model.cache.kind "hostPath") (not $model.cache.hostPath) }}
model.cache.kind is hostPath, without one: set model.cache.hostPath
{{- end }}
{{- end -}}
{{- end -}}

{{/* All images as JSON {where: image}. */}}
{{- define "slipstream.images" -}}
{{- $images := dict "learner.image" .Values.learner.image "verifier.image" .Values.verifier.image "replay.image" .Values.replay.image -}}
{{- if include "slipstream.teacher.enabled" . -}}{{- $_ := set $images "teacher.image" .Values.teacher.image -}}{{- end -}}
{{- if .Values.tests.enabled -}}{{- $_ := set $images "tests.image" .Values.tests.image -}}{{- end -}}
{{- if eq .Values.redis.mode "builtIn" -}}{{- $_ := set $images "redis.image" .Values.redis.image -}}{{- end -}}
{{- range (include "slipstream.rollout.pools" . | fromJson).pools -}}
{{- $_ := set $images (printf "rollout.pools[%s].image" .name) .image -}}
{{- end -}}
{{- $images | toJson -}}
{{- end -}}

{{- define "slipstream.guards.images" -}}
{{- range $where, $image := include "slipstream.images" . | fromJson -}}
{{- $tag := default (default $.Chart.AppVersion $.Values.image.tag) $image.tag -}}
{{- if and (not $image.digest) (eq $tag "latest") }}
the tag of {{ $where }} is latest, which is another image tomorrow: set a version, or {{ $where }}.digest
{{- end }}
{{- end -}}
{{- $redis := .Values.redis.image -}}
{{- if and (eq .Values.redis.mode "builtIn") (not $redis.digest) (regexMatch "^[0-9]+\\.[0-9]+\\.[0-9]+" $redis.tag) -}}
{{- if semverCompare "<8.6.3-0" (regexFind "^[0-9]+\\.[0-9]+\\.[0-9]+" $redis.tag) }}
redis.image.tag is {{ $redis.tag }}, which has known faults in what replay uses: set 8.6.3 or newer
{{- end }}
{{- end }}
{{- end -}}
