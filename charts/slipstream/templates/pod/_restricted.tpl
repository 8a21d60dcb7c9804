{{/*
The reasons why a component violates the restricted Pod Security Standard, one per line; nothing if it meets the standard.
Takes (dict "root" $ "where" WHAT "component" NAME "room" ROOM).
*/}}
{{- define "slipstream.restricted.reasons" -}}
{{- $room := .room -}}
{{- $pod := mergeOverwrite (deepCopy .root.Values.podSecurityContext) $room.podSecurityContext -}}
{{- $own := mergeOverwrite (deepCopy .root.Values.securityContext) $room.securityContext -}}
{{- if $room.hostNetwork }}
hostNetwork
{{- end }}
{{- if $room.hostIPC }}
hostIPC
{{- end }}
{{- if $pod.sysctls }}
podSecurityContext.sysctls
{{- end }}
{{- include "slipstream.restricted.volumes" . }}
{{- range splitList " " (include "slipstream.restricted.context" (dict "pod" $pod "container" $own)) | compact }}
securityContext: {{ . }}
{{- end }}
{{- range $key := list "initContainers" "sidecars" -}}
{{- range $container := index $room $key -}}
{{- $context := default $own $container.securityContext -}}
{{- range splitList " " (include "slipstream.restricted.context" (dict "pod" $pod "container" $context)) | compact }}
{{ $key }}[{{ $container.name }}].securityContext: {{ . }}
{{- end -}}
{{- range $container.ports -}}
{{- if .hostPort }}
{{ $key }}[{{ $container.name }}].ports: hostPort {{ .hostPort }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Volumes of types that the standard does not allow; of the chart's own volumes only directories of the node are such. */}}
{{- define "slipstream.restricted.volumes" -}}
{{- $allowed := list "configMap" "csi" "downwardAPI" "emptyDir" "ephemeral" "persistentVolumeClaim" "projected" "secret" -}}
{{- range $volume := .room.extraVolumes -}}
{{- range $type := omit $volume "name" | keys -}}
{{- if not (has $type $allowed) }}
extraVolumes[{{ $volume.name }}]: {{ $type }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if has .component (list "learner" "rollout" "actor") -}}
{{- if contains "hostPath:" (include "slipstream.model.volume" .) }}
model.{{ ternary "volume" "cache" (eq .root.Values.model.mode "volume") }}.hostPath
{{- end -}}
{{- else if dig "models" "hostPath" "" .room }}
models.hostPath
{{- end -}}
{{- end -}}

{{/* Keys of a security context that the standard forbids, separated by blanks. Takes (dict "pod" CONTEXT "container" CONTEXT). */}}
{{- define "slipstream.restricted.context" -}}
{{- $container := .container -}}
{{- $both := merge (deepCopy $container) .pod -}}
{{- $found := list -}}
{{- if $container.privileged -}}{{- $found = append $found "privileged" -}}{{- end -}}
{{- if ne (toString $container.allowPrivilegeEscalation) "false" -}}{{- $found = append $found "allowPrivilegeEscalation" -}}{{- end -}}
{{- $added := without (dig "capabilities" "add" list $container | default list) "NET_BIND_SERVICE" -}}
{{- if or $added (not (has "ALL" (dig "capabilities" "drop" list $container | default list))) -}}
{{- $found = append $found "capabilities" -}}
{{- end -}}
{{- $nonRoot := ternary $container.runAsNonRoot $both.runAsNonRoot (hasKey $container "runAsNonRoot") -}}
{{- if ne (toString $nonRoot) "true" -}}{{- $found = append $found "runAsNonRoot" -}}{{- end -}}
{{- $user := ternary $container.runAsUser $both.runAsUser (hasKey $container "runAsUser") -}}
{{- if eq (toString $user) "0" -}}{{- $found = append $found "runAsUser" -}}{{- end -}}
{{- if not (has (dig "seccompProfile" "type" "" $both) (list "RuntimeDefault" "Localhost")) -}}
{{- $found = append $found "seccompProfile" -}}
{{- end -}}
{{- if ne (default "Default" $container.procMount) "Default" -}}{{- $found = append $found "procMount" -}}{{- end -}}
{{- join " " $found -}}
{{- end -}}
