{{/* Name of the application, in labels and selectors. */}}
{{- define "chainscope.name" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end -}}

{{/* Prefix of all object names, short enough for all suffixes. */}}
{{- define "chainscope.fullname" -}}
{{- $name := .Release.Name -}}
{{- if and .Values.nameOverride (not (contains .Values.nameOverride $name)) -}}
{{- $name = printf "%s-%s" $name .Values.nameOverride -}}
{{- end -}}
{{- .Values.fullnameOverride | default $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of a component's ServiceAccount. Takes (list $ "component"). */}}
{{- define "chainscope.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "chainscope.fullname" $root) (index . 1) -}}
{{- (index $root.Values (index . 1)).serviceAccount.name | default $name -}}
{{- end -}}

{{/* Selector labels of a component's pods. They must not change: selectors are immutable. Takes (list $ "component"). */}}
{{- define "chainscope.selector" -}}
app.kubernetes.io/name: {{ include "chainscope.name" (index . 0) }}
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

{{/* metadata of a pod's template, without labels that change with every version of the chart: they would restart agents that are
     the same. Takes (list $ "component" values). */}}
{{- define "chainscope.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
labels:
  {{- include "chainscope.selector" . | nindent 2 }}
  app.kubernetes.io/part-of: chainscope
  {{- with merge (dict) ($values.podLabels | default dict) $root.Values.commonLabels }}
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
{{- if not (or $root.Values.image.registry (contains "/" $image.repository)) -}}
{{- include "chainscope.noRegistry" $root | fail -}}
{{- end -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{/* What to do without image.registry. */}}
{{- define "chainscope.noRegistry" }}

image.registry is not set, and there is no registry that has these images by default. Build them in a checkout of Chainscope:

  make images

Then load them into the hosts, such as those of kind, and pass --set image.registry=localhost

  for name in agent operator aggregator; do kind load image-archive target/images/$name.tar; done

or push them to a registry (docs/kubernetes.md, "Images"), and pass --set image.registry=registry.example.org/team
{{ end -}}

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

{{/* securityContext of a pod that needs no privileges. OpenShift assigns users and groups of the namespace's range; others are
     refused. Takes (list $ podSecurityContext). */}}
{{- define "chainscope.podSecurity" -}}
{{- $context := index . 1 -}}
{{- if (index . 0).Values.openshift.enabled }}{{ $context = omit $context "runAsUser" "runAsGroup" "fsGroup" }}{{ end -}}
{{- toYaml $context -}}
{{- end -}}

{{/* securityContext of the agent's pod. SELinux denies bpf(2) to ordinary containers. */}}
{{- define "chainscope.agentPodSecurity" -}}
{{- $context := .Values.agent.podSecurityContext -}}
{{- if and .Values.openshift.enabled (not $context.seLinuxOptions) }}
{{- $context = merge (dict "seLinuxOptions" (dict "type" "spc_t")) $context }}
{{- end -}}
{{- toYaml $context -}}
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

{{/* The names under which clients reach the API, for --hosts. */}}
{{- define "chainscope.apiHosts" -}}
{{- $names := list (include "chainscope.serviceNames" (list . "aggregator")) }}
{{- with .Values.aggregator }}
{{- /* A wildcard is no name: with auth.mode none, only names are served. */}}
{{- if .ingress.enabled }}{{ $names = concat $names .ingress.hosts }}{{ end }}
{{- if .httpRoute.enabled }}{{ $names = concat $names .httpRoute.hostnames }}{{ end }}
{{- end }}
{{- $known := list }}
{{- range $names }}{{ if not (hasPrefix "*." .) }}{{ $known = append $known . }}{{ end }}{{ end }}
{{- join "," $known }}
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

{{/* Kind, name and key of the object with the CA bundle, as YAML. */}}
{{- define "chainscope.ca" -}}
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
{{- dict "kind" $kind "name" $name "key" $key | toYaml -}}
{{- end -}}

{{/* Volume of the CA bundle. */}}
{{- define "chainscope.caVolume" -}}
{{- $ca := include "chainscope.ca" . | fromYaml -}}
name: ca
{{- if eq $ca.kind "ConfigMap" }}
configMap:
  name: {{ $ca.name }}
{{- else }}
secret:
  secretName: {{ $ca.name }}
{{- end }}
  items:
    - {key: {{ $ca.key }}, path: ca.crt}
{{- end -}}

{{/* The aggregator's volume claim; empty if another volume holds its data. */}}
{{- define "chainscope.claim" -}}
{{- with .Values.aggregator.persistence -}}
{{- if and .enabled (not .existingClaim) -}}
metadata:
  name: data
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  accessModes:
    {{- toYaml .accessModes | nindent 4 }}
  {{- if eq .storageClassName "-" }}
  storageClassName: ""
  {{- else if .storageClassName }}
  storageClassName: {{ .storageClassName }}
  {{- end }}
  resources:
    requests:
      storage: {{ include "chainscope.quantity" .size }}
{{- end -}}
{{- end -}}
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
     SubjectAccessReviews. Takes a dictionary with "names" of TezosNodes, or an empty one for all nodes. */}}
{{- define "chainscope.readRules" -}}
- apiGroups: [chainscope.dev]
  resources: [tezosnodes/messages, tezosnodes/connections, tezosnodes/chunks, tezosnodes/stats, tezosnodes/memory, tezosnodes/logs, tezosnodes/trace]
  {{- with .names }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: [get]
{{- if not .names }}
- apiGroups: [chainscope.dev]
  resources: [nodetraces/trace, nodetraces/stats]
  verbs: [get]
{{- end }}
{{- end -}}

{{/* A quantity as text; large integers come as floating-point numbers. */}}
{{- define "chainscope.quantity" -}}
{{- if kindIs "float64" . }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{/* Number of bytes of a quantity, to compare those of different units. */}}
{{- define "chainscope.bytes" -}}
{{- $text := include "chainscope.quantity" . -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- $decimal := dict "m" 0.001 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $binary := dict "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (float64 $number) (get (merge $decimal $binary) (trimPrefix $number $text)) | printf "%.0f" -}}
{{- end -}}
