{{/* Labels that never change: they are selectors. Argument: dict "part" "agent" "root" $ */}}
{{- define "flashboot.selector" -}}
app.kubernetes.io/name: flashboot-{{ .part }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{/* All labels of an object. */}}
{{- define "flashboot.labels" -}}
{{ include "flashboot.selector" . }}
app.kubernetes.io/part-of: flashboot
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
{{- end }}

{{/* Image reference of a part: by digest when one is given, else by tag. */}}
{{- define "flashboot.image" -}}
{{- $image := (index .root.Values .part).image -}}
{{- $name := printf "%s/%s" .root.Values.image.registry $image.repository -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Where pods of a part go, and what they may push aside. */}}
{{- define "flashboot.placement" -}}
{{- $part := index .root.Values .part -}}
priorityClassName: {{ $part.priorityClassName }}
{{- with $part.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* What every unprivileged container of ours runs under: Pod Security "restricted". */}}
{{- define "flashboot.restricted" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/*
The folders under /run/flashboot, each owned by who writes it. kubelet makes the hostPath as root, and the agent and the
holder are not root; this is the one step that needs to be, with no capability but CHOWN.
*/}}
{{- define "flashboot.folders" -}}
{{- $images := and (eq .part "agent") .root.Values.agent.images.enabled }}
{{- $updates := and (eq .part "agent") .root.Values.agent.updates.hostPath }}
- name: folders
  image: {{ include "flashboot.image" . }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [sh, -ec, "cd /run/flashboot; mkdir -p holder agent pods meta; chown 65532:65532 holder agent{{ if $images }} /var/lib/flashboot/images{{ end }}{{ if $updates }} /var/lib/flashboot/updates{{ end }}"]
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    runAsNonRoot: false
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL], add: [CHOWN]}
    seccompProfile: {type: RuntimeDefault}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: run, mountPath: /run/flashboot}
    {{- if $images }}
    - {name: images, mountPath: /var/lib/flashboot/images}
    {{- end }}
    {{- if $updates }}
    - {name: updates, mountPath: /var/lib/flashboot/updates}
    {{- end }}
{{- end }}
