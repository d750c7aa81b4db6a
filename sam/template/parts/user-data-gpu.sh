#!/bin/bash
# What a GPU instance does when it starts for the first time; CloudFormation replaces what stands in braces after a
# dollar sign. One that goes to the warm pool is prepared, and starts its server when it is started the next time.
set -Eeuo pipefail
export AWS_DEFAULT_REGION=${AWS::Region}
mkdir -p /opt/serfer /etc/systemd/system

cat > /opt/serfer/metadata <<'END'
#!/bin/bash
set -Eeuo pipefail
at=http://169.254.169.254/latest
token=$(curl -sSf -X PUT $at/api/token -H 'X-aws-ec2-metadata-token-ttl-seconds: 300')
curl -sSf -H "X-aws-ec2-metadata-token: $token" "$at/meta-data/$1"
END
# Tells Auto Scaling that the instance may go on: into service, or into the warm pool.
cat > /opt/serfer/tell <<'END'
#!/bin/bash
set -Eeuo pipefail
export AWS_DEFAULT_REGION=${AWS::Region}
aws autoscaling complete-lifecycle-action --auto-scaling-group-name '@gpu_group@' --lifecycle-hook-name started \
  --instance-id "$(/opt/serfer/metadata instance-id)" --lifecycle-action-result "$1"
END
# At each start: waits until the server answers, unless the instance is to be stopped for the warm pool.
cat > /opt/serfer/started <<'END'
#!/bin/bash
set -Eeuo pipefail
state=$(/opt/serfer/metadata autoscaling/target-lifecycle-state)
if [[ $state != Warmed:* ]]; then
  curl -sSf --output /dev/null --retry 180 --retry-delay 2 --retry-all-errors --max-time 5 http://127.0.0.1:8000/v2/health/ready
fi
/opt/serfer/tell CONTINUE || true # nobody waits after a reboot
END
# Ends an instance that cannot serve, without another one in its place: drivers ask for one, and pause in between. An
# instance of the warm pool can only be abandoned.
cat > /opt/serfer/failed <<'END'
#!/bin/bash
export AWS_DEFAULT_REGION=${AWS::Region}
aws autoscaling terminate-instance-in-auto-scaling-group --should-decrement-desired-capacity \
  --instance-id "$(/opt/serfer/metadata instance-id)" || /opt/serfer/tell ABANDON
END
chmod 0755 /opt/serfer/metadata /opt/serfer/tell /opt/serfer/started /opt/serfer/failed
trap /opt/serfer/failed ERR

# From Amazon Linux's own repository, which S3 has: others that an image may know are out of reach.
dnf install --quiet --assumeyes --repo amazonlinux @runtime@ amazon-cloudwatch-agent logrotate unzip
useradd --system --user-group --home-dir /var/lib/serfer --shell /sbin/nologin serfer
usermod --append --groups video serfer 2> /dev/null || true # who may use the GPU, where a group says so
install --directory --owner serfer --group serfer --mode 0755 /var/lib/serfer /var/log/serfer
install --owner serfer --group serfer --mode 0644 /dev/null /var/log/serfer/gpu.log

@fetch@
for layer in ${DriverLayer} ${DriverPlans} ${GpuRuntime} ${Weights}; do
  fetch "$layer"
done
unzip -q -o '/opt/serfer/gpu/*.whl' 'onnxruntime/*' -d /opt/serfer/python
rm -r /opt/serfer/gpu
# A plan directory: what drivers have of it, and the weights that the stages' functions have.
cp -r /opt/serfer/python/serfer_plan/. /opt/serfer/plans/@digest@/
rm -r /opt/serfer/python/serfer_plan@fetched@

# Where the image keeps CUDA 13 and cuDNN 9: NVIDIA's own place, or beside PyTorch.
{ find -L /usr/local/cuda*/ /opt/pytorch -name 'libcudart.so.13' -o -name 'libcublasLt.so.13' -o -name 'libcurand.so.10' \
  -o -name 'libcufft.so.12' -o -name 'libcudnn.so.9' 2> /dev/null || true; } | xargs -r dirname | sort -u > /etc/ld.so.conf.d/serfer.conf
ldconfig

cat > /etc/systemd/system/serfer-instance.service <<'END'
[Unit]
Description=SerFer GPU instance
After=network-online.target
Wants=network-online.target

[Service]
User=serfer
WorkingDirectory=/opt/serfer
Environment=PYTHONPATH=/opt/serfer/python PYTHONDONTWRITEBYTECODE=1 AWS_DEFAULT_REGION=${AWS::Region}
ExecStartPre=-+/usr/bin/nvidia-modprobe -u -c=0
ExecStart=/usr/bin/@runtime@ -m serfer.api.entrypoints.instance_daemon --plan plans/@digest@ --device cuda --host 0.0.0.0 --port 8000 \
  --exit-when-idle-s 300 --auto-scaling-release
StandardOutput=append:/var/log/serfer/gpu.log
StandardError=append:/var/log/serfer/gpu.log
# Even after it has ended by itself: then the machine goes as well, or has to be let go of once more.
Restart=always
RestartSec=5
TimeoutStopSec=90
LimitNOFILE=65536
CapabilityBoundingSet=
LockPersonality=yes
NoNewPrivileges=yes
PrivateTmp=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectSystem=strict
ReadWritePaths=/var/lib/serfer
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
END
cat > /etc/systemd/system/serfer-started.service <<'END'
[Unit]
Description=Tell Auto Scaling that the instance answers
After=network-online.target serfer-instance.service
Wants=network-online.target
OnFailure=serfer-failed.service

[Service]
Type=oneshot
ExecStart=/opt/serfer/started
TimeoutStartSec=900

[Install]
WantedBy=multi-user.target
END
cat > /etc/systemd/system/serfer-failed.service <<'END'
[Unit]
Description=End an instance that cannot serve

[Service]
Type=oneshot
ExecStart=/opt/serfer/failed
END
@logs@
logs gpu '${GpuLog}'

systemctl daemon-reload
systemctl enable serfer-instance.service serfer-started.service
systemctl enable --now logrotate.timer || true # a full disk is far away
if [[ $(/opt/serfer/metadata autoscaling/target-lifecycle-state) != Warmed:* ]]; then
  systemctl start serfer-instance.service
fi
/opt/serfer/started
