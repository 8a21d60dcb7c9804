{{/* Guards on containers and devices that the user adds: their names and ports must not clash with the chart's. */}}

{{- define "slipstream.guards.containers" -}}
{{- range (include "slipstream.rooms" . | fromJson).rooms -}}
{{- include "slipstream.guards.containersOf" (merge (dict "root" $) .) }}
{{- include "slipstream.guards.devicesOf" . }}
{{- $where := .where -}}
{{- range .room.envFrom -}}
{{- if hasPrefix "SLIPSTREAM_" (default "" .prefix) }}
{{ $where }}.envFrom has the prefix {{ .prefix }}, and such variables change the configuration of the run: set another prefix, and write what the run needs in run.config
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Names, ports and volumes. Takes (dict "root" $ "where" WHAT "component" NAME "room" ROOM). */}}
{{- define "slipstream.guards.containersOf" -}}
{{- $where := .where -}}
{{- $names := list "model" .component -}}
{{- if eq .component "learner" -}}{{- $names = append $names "check" -}}{{- end -}}
{{- if eq .component "test" -}}{{- $names = list "replay" "verifier" "learner" "circle" "teacher" -}}{{- end -}}
{{- $ports := include "slipstream.ports.of" (list .root .component) | fromJson -}}
{{- $taken := concat (keys $ports) (values $ports) -}}
{{- $volumes := include "slipstream.volumes.own" . | splitList " " -}}
{{- range .room.extraVolumes -}}{{- $volumes = append $volumes .name -}}{{- end -}}
{{- range $key := list "initContainers" "sidecars" -}}
{{- range index $.room $key -}}
{{- $container := . -}}
{{- if has .name $names }}
{{ $where }}.{{ $key }} has a container {{ .name }}, and another of the pod is called so: give it a name of its own
{{- end }}
{{- $names = append $names .name -}}
{{- range .ports -}}
{{- $number := toString .containerPort -}}
{{- if or (has $number $taken) (and .name (has .name $taken)) }}
{{ $where }}.{{ $key }} has a container {{ $container.name }} with the port {{ $number }}{{ with .name }} ({{ . }}){{ end }}, which another of the pod has, by number or name: set another
{{- end }}
{{- $taken = concat $taken (list $number) (list .name | compact) -}}
{{- end -}}
{{- range .volumeMounts -}}
{{- if not (has .name $volumes) }}
{{ $where }}.{{ $key }} has a container {{ $container.name }} that mounts {{ .name }}, and no volume is called so: add it to {{ $where }}.extraVolumes
{{- end }}
{{- end -}}
{{- if and (eq $key "sidecars") .restartPolicy }}
{{ $where }}.sidecars has a container {{ .name }} with a restartPolicy, which only init containers have: leave it out, or move the container to {{ $where }}.initContainers
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Claims of devices. Takes (dict "where" WHAT "room" ROOM). */}}
{{- define "slipstream.guards.devicesOf" -}}
{{- $where := .where -}}
{{- $claims := list -}}
{{- range .room.resourceClaims -}}
{{- if has .name $claims }}
{{ $where }}.resourceClaims has two claims {{ .name }}: give each a name of its own
{{- end }}
{{- $claims = append $claims .name -}}
{{- end -}}
{{- $used := default list .room.resources.claims -}}
{{- range concat (default list .room.initContainers) (default list .room.sidecars) -}}
{{- $used = concat $used (dig "resources" "claims" list .) -}}
{{- end -}}
{{- range $used -}}
{{- if not (has .name $claims) }}
{{ $where }} has a container that uses the claim {{ .name }}, and no claim of the pod is called so: add it to {{ $where }}.resourceClaims
{{- end }}
{{- end -}}
{{- with .room.gpu -}}
{{- if and (gt (int .count) 0) (not .resource) (not $.room.resources.claims) }}
{{ $where }}.gpu.count is {{ .count }}, without gpu.resource, and the container uses no claim: set gpu.resource to the device plugin's, such as nvidia.com/gpu, or resources.claims to the claim of the GPUs
{{- end }}
{{- end -}}
{{- end -}}
