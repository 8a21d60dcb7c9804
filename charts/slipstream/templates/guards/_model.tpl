{{/* Guards on the model and on images. */}}

{{- define "slipstream.guards.model" -}}
{{- $model := .Values.model -}}
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
{{- $download := $model.download -}}
{{- if and $download.authority.configMap $download.authority.secret }}
model.download.authority names a configMap and a secret: leave one of them empty
{{- end }}
{{- if and .Values.network.egress.huggingface $download.proxy (not .Values.network.egress.peers) }}
model.download.proxy is {{ $download.proxy }}, and network.egress.cidrs has no private addresses: set network.egress.peers to where the proxy is
{{- end }}
{{- with include "slipstream.guards.closedEndpoint" . }}
model.download.endpoint is {{ $download.endpoint }}, and network.egress.except closes {{ . }}: set network.egress.peers to where the mirror is
{{- end }}
{{- if and $download.noProxy (not $download.proxy) }}
model.download.noProxy is set, and there is no proxy: set model.download.proxy, or leave noProxy empty
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

{{/*
The block of network.egress.except that contains the mirror, if the mirror is given by an address and no other rule allows
it. Only the private blocks can be compared here.
*/}}
{{- define "slipstream.guards.closedEndpoint" -}}
{{- $egress := .Values.network.egress -}}
{{- $private := dict
  "10.0.0.0/8" "^10[.]"
  "172.16.0.0/12" "^172[.](1[6-9]|2[0-9]|3[01])[.]"
  "192.168.0.0/16" "^192[.]168[.]"
  "169.254.0.0/16" "^169[.]254[.]"
  "fc00::/7" "^\\[[fF][cCdD][0-9a-fA-F]{2}:"
  "fe80::/10" "^\\[[fF][eE][89abAB][0-9a-fA-F]:" -}}
{{- $host := regexFind "^(([0-9]+[.]){3}[0-9]+|\\[[0-9a-fA-F:.]+\\])" (regexReplaceAll "^https?://" .Values.model.download.endpoint "") -}}
{{- $all := true -}}
{{- range $egress.cidrs -}}{{- if not (has . (list "0.0.0.0/0" "::/0")) -}}{{- $all = false -}}{{- end -}}{{- end -}}
{{- if and .Values.network.policies $egress.huggingface $all $host (not $egress.peers) (not .Values.model.download.proxy) -}}
{{- range $egress.except -}}
{{- if regexMatch (get $private . | default "^$") $host -}}{{- . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* All images as JSON {where: image}. */}}
{{- define "slipstream.images" -}}
{{- $images := dict "learner.image" .Values.learner.image "actor.image" .Values.actor.image "verifier.image" .Values.verifier.image "replay.image" .Values.replay.image -}}
{{- if include "slipstream.teacher.enabled" . -}}{{- $_ := set $images "teacher.image" .Values.teacher.image -}}{{- end -}}
{{- if .Values.console.enabled -}}{{- $_ := set $images "console.image" .Values.console.image -}}{{- end -}}
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
