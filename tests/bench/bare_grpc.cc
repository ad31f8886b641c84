#include "tests/bench/bare_grpc.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/slice.h>

#include "common/rpc/channel.h"
#include "common/transfer/wire.h"

namespace causeway::bench {
namespace {

constexpr char kCarryMethod[] = "/causeway.v1.Exchange/Carry";

int64_t ChunksOf(std::span<const uint8_t> object) {
  return static_cast<int64_t>((object.size() + kChunkBytes - 1) / kChunkBytes);
}

}  // namespace

class GrpcSink::Stream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream() { StartRead(&incoming_); }

  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      if (!ok) {
        reading_ = false;
        return FinishIfIdle();
      }
      incoming_.Clear();
      ++read_;
      Acknowledge();
    }
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (ok && reading_) Acknowledge();
    FinishIfIdle();
  }
  void OnDone() override { delete this; }

 private:
  // One message at a time, which speaks of all that came until then.
  void Acknowledge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || acknowledged_ == read_) return;
    writing_ = true;
    acknowledged_ = read_;
    v1::Acknowledgement message;
    message.set_chunks(read_);
    outgoing_ = MessageToBuffer(message);
    StartWrite(&outgoing_);
  }
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!reading_ && !writing_) Finish(grpc::Status::OK);
  }

  grpc::ByteBuffer incoming_;
  absl::Mutex mutex_;
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mutex_);
  int64_t read_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* GrpcSink::Service::Carry(
    grpc::CallbackServerContext* /*context*/) {
  return std::make_unique<Stream>().release();  // OnDone deletes it.
}

absl::StatusOr<std::unique_ptr<GrpcSink>> GrpcSink::Start(const SecurityOptions& options) {
  const std::string address = "127.0.0.1:0";
  ASSIGN_OR_RETURN(const ServerSecurity security,
                   MakeServerSecurity(options, address, absl::Now()));
  std::unique_ptr<GrpcSink> sink(new GrpcSink());
  grpc::ServerBuilder builder;
  ConfigureServer(builder, {});
  builder.AddListeningPort(address, security.credentials, &sink->port_);
  builder.RegisterService(&sink->service_);
  sink->server_ = builder.BuildAndStart();
  if (sink->server_ == nullptr) return absl::InternalError("gRPC does not start a server");
  return sink;
}

GrpcSink::~GrpcSink() {
  if (server_ != nullptr) server_->Shutdown();
}

class GrpcSource::Stream final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(GrpcSource& source, std::shared_ptr<grpc::Channel> channel)
      : source_(source), stub_(std::move(channel)) {
    stub_.PrepareBidiStreamingCall(&context_, kCarryMethod, {}, this);
    AddHold();  // WriteOn is called by whoever sends.
    StartRead(&incoming_);
    StartCall();
  }
  ~Stream() override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = true;  // Nothing more.
    }
    context_.TryCancel();
    RemoveHold();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
  }

  // Writes a chunk, unless one is being written.
  void WriteOn() {
    absl::MutexLock lock(&mutex_);
    if (writing_) return;
    const std::span<const uint8_t> chunk = source_.TakeChunk();
    if (chunk.empty()) return;
    writing_ = true;
    const grpc::Slice slice(const_cast<uint8_t*>(chunk.data()), chunk.size(),
                            grpc::Slice::STATIC_SLICE);
    outgoing_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&outgoing_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return source_.Broke();
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    WriteOn();
  }
  void OnReadDone(bool ok) override {
    v1::Acknowledgement message;
    if (!ok || !BufferToMessage(incoming_, message).ok()) return source_.Broke();
    const int64_t news = message.chunks() - std::exchange(acknowledged_, message.chunks());
    StartRead(&incoming_);
    source_.Acknowledged(news);
  }
  void OnDone(const grpc::Status& /*end*/) override {
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }

 private:
  GrpcSource& source_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  int64_t acknowledged_ = 0;
  absl::Mutex mutex_;
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

GrpcSource::GrpcSource(const std::string& address, int connections,
                       const ChannelSecurity& security) {
  for (int i = 0; i < connections; ++i) {
    streams_.push_back(std::make_unique<Stream>(*this, MakeChannel(address, i, security)));
  }
}

GrpcSource::~GrpcSource() = default;

std::span<const uint8_t> GrpcSource::TakeChunk() {
  absl::MutexLock lock(&mutex_);
  const std::span<const uint8_t> chunk = rest_.first(std::min(kChunkBytes, rest_.size()));
  rest_ = rest_.subspan(chunk.size());
  return chunk;
}

void GrpcSource::Acknowledged(int64_t chunks) {
  absl::MutexLock lock(&mutex_);
  owed_chunks_ -= chunks;
}

void GrpcSource::Broke() {
  absl::MutexLock lock(&mutex_);
  broke_ = true;
}

absl::Status GrpcSource::Send(std::span<const uint8_t> object) {
  {
    absl::MutexLock lock(&mutex_);
    rest_ = object;
    owed_chunks_ = ChunksOf(object);
  }
  for (const auto& stream : streams_) stream->WriteOn();
  absl::MutexLock lock(&mutex_);
  const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return owed_chunks_ == 0 || broke_;
  };
  mutex_.Await(absl::Condition(&over));
  return broke_ ? absl::UnavailableError("a stream of gRPC broke") : absl::OkStatus();
}

}  // namespace causeway::bench
