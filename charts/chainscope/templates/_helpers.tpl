{{/* Prefix of all object names, short enough for all suffixes. */}}
{{- define "chainscope.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Selector labels of a component's pods. They must not change: selectors are immutable. Takes (list $ "component"). */}}
{{- define "chainscope.selector" -}}
app.kubernetes.io/name: chainscope
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of an object. Takes (list $ "component"). */}}
{{- define "chainscope.labels" -}}
{{- $root := index . 0 -}}
{{ include "chainscope.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: chainscope
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of an object in the release's namespace. Takes (list $ "component" "suffix of the name"
     annotations labels); the last two may be left out. */}}
{{- define "chainscope.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "chainscope.fullname" $root }}{{ with index . 2 }}-{{ . }}{{ end }}
namespace: {{ $root.Release.Namespace }}
{{ include "chainscope.clusterMetadata" . }}
{{- end -}}

{{/* Labels and annotations in metadata of namespaced and cluster-scoped objects. Takes the same list. */}}
{{- define "chainscope.clusterMetadata" -}}
{{- $root := index . 0 -}}
{{- $own := dict -}}
{{- if gt (len .) 3 }}{{ $own = index . 3 | default dict }}{{ end -}}
labels:
  {{- include "chainscope.labels" . | nindent 2 }}
  {{- if gt (len .) 4 }}
  {{- with index . 4 }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
{{- with merge (dict) $own $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* metadata of a pod's template. Takes (list $ "component" values). */}}
{{- define "chainscope.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
labels:
  {{- include "chainscope.labels" . | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  kubectl.kubernetes.io/default-container: {{ index . 1 }}
  {{- with merge (dict) ($values.podAnnotations | default dict) $root.Values.commonAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Image of a component, with the common registry and tag. Takes (list $ image). */}}
{{- define "chainscope.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* A third-party image. Takes the image. */}}
{{- define "chainscope.foreignImage" -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
{{- end -}}

{{/* Common fields of all pods. Takes (list $ values). */}}
{{- define "chainscope.podCommon" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* securityContext for the PodSecurity level restricted, for pods and containers. */}}
{{- define "chainscope.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}
{{- define "chainscope.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Probes on the metrics port. Takes the maximum startup time in seconds. */}}
{{- define "chainscope.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 1
  failureThreshold: {{ . }}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 3
{{- end -}}

{{/* Addresses with the DNS names of the certificates. */}}
{{- define "chainscope.operatorUrl" -}}
https://{{ include "chainscope.fullname" . }}-operator.{{ .Release.Namespace }}.svc:17734
{{- end -}}
{{- define "chainscope.apiHost" -}}
{{ include "chainscope.fullname" . }}-aggregator.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* The names of a component's Service, for --hosts: list of root and component. */}}
{{- define "chainscope.serviceNames" -}}
{{- $root := index . 0 }}
{{- $name := printf "%s-%s" (include "chainscope.fullname" $root) (index . 1) }}
{{- $namespaced := printf "%s.%s" $name $root.Release.Namespace }}
{{- list $name $namespaced (printf "%s.svc" $namespaced) (printf "%s.svc.cluster.local" $namespaced) | join "," }}
{{- end -}}

{{/* Projected token of agents and aggregator for the audience chainscope. */}}
{{- define "chainscope.tokenVolume" -}}
name: token
projected:
  defaultMode: 0440
  sources:
    - serviceAccountToken:
        path: token
        audience: chainscope
        expirationSeconds: 3600
{{- end -}}

{{/* Volume of the CA bundle. */}}
{{- define "chainscope.caVolume" -}}
{{- $name := .Values.certificates.ca.name -}}
{{- $kind := .Values.certificates.ca.kind -}}
{{- $key := .Values.certificates.ca.key -}}
{{- if eq .Values.certificates.mode "operator" -}}
{{- $name = printf "%s-ca" (include "chainscope.fullname" .) -}}
{{- $kind = "ConfigMap" -}}
{{- $key = "ca.crt" -}}
{{- else if and (eq .Values.certificates.mode "cert-manager") (not $name) -}}
{{- $name = printf "%s-trust" (include "chainscope.fullname" .) -}}
{{- $kind = "Secret" -}}
{{- $key = "ca.crt" -}}
{{- end -}}
name: ca
{{- if eq $kind "ConfigMap" }}
configMap:
  name: {{ $name }}
{{- else }}
secret:
  secretName: {{ $name }}
{{- end }}
  items:
    - {key: {{ $key }}, path: ca.crt}
{{- end -}}

{{/* Directories of the host with logs of pods, by name of the volume, as JSON. They are mounted under the same paths, because
     links have absolute targets. */}}
{{- define "chainscope.podLogs" -}}
{{- $logs := .Values.agent.podLogs -}}
{{- $paths := dict -}}
{{- if $logs.enabled }}{{ $_ := set $paths "pod-logs" $logs.path }}{{ end -}}
{{- if and $logs.enabled $logs.docker }}{{ $_ := set $paths "pod-logs-docker" "/var/lib/docker/containers" }}{{ end -}}
{{- toJson $paths -}}
{{- end -}}

{{/* Volume of a server certificate. Takes (list $ "operator" or "aggregator"). */}}
{{- define "chainscope.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.certificates.mode "secret" -}}
{{- index $root.Values.certificates.secret (index . 1) -}}
{{- else -}}
{{- include "chainscope.fullname" $root }}-{{ index . 1 }}-tls
{{- end -}}
{{- end -}}

{{/* RBAC rules for reading a node's records. The subresources do not exist in the API server; the aggregator uses them in
     SubjectAccessReviews. Takes a dictionary with "names", or an empty one for all nodes. */}}
{{- define "chainscope.readRules" -}}
- apiGroups: [chainscope.dev]
  resources: [tezosnodes/messages, tezosnodes/connections, tezosnodes/chunks, tezosnodes/stats, tezosnodes/memory, tezosnodes/logs]
  {{- with .names }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: [get]
{{- end -}}
