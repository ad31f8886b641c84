// causeway.v1.Probe: what a site asks before it joins.
#ifndef CAUSEWAY_SERVER_SERVICE_PROBE_SERVICE_H_
#define CAUSEWAY_SERVER_SERVICE_PROBE_SERVICE_H_

#include "causeway/v1/probe.grpc.pb.h"
#include "server/access/access.h"
#include "server/core/served_run.h"
#include "server/service/probe_gate.h"

namespace causeway::server {

class ProbeService final : public v1::Probe::CallbackService {
 public:
  // All outlive the service.
  ProbeService(const ServedRun& run, Access& access, ProbeGate& gate)
      : run_(run), access_(access), gate_(gate) {}

  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context,
                                 const v1::EchoRequest* request,
                                 v1::EchoResponse* response) override;
  grpc::ServerReadReactor<v1::UploadRequest>* Upload(grpc::CallbackServerContext* context,
                                                     v1::UploadResponse* response) override;
  grpc::ServerWriteReactor<v1::DownloadResponse>* Download(
      grpc::CallbackServerContext* context, const v1::DownloadRequest* request) override;

 private:
  const ServedRun& run_;
  Access& access_;
  ProbeGate& gate_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_SERVICE_PROBE_SERVICE_H_
