#include "common/rpc/channel.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <limits>

#include "absl/strings/match.h"
#include "common/base/text.h"
#include "common/rpc/status.h"
#include "common/rpc/tcp_stream.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

void Release(void* owner) {
  const std::unique_ptr<std::shared_ptr<const void>> last(
      static_cast<std::shared_ptr<const void>*>(owner));
}

grpc::Slice Copied(const std::string& bytes) { return {bytes.data(), bytes.size()}; }

}  // namespace

MessageBytes TakeMessage(grpc::ByteBuffer& buffer) {
  const auto slices = std::make_shared<std::vector<grpc::Slice>>();
  MessageBytes message;
  if (buffer.Dump(slices.get()).ok()) {
    for (const grpc::Slice& slice : *slices)
      message.pieces.emplace_back(slice.begin(), slice.size());
  }
  message.owner = slices;
  buffer.Clear();
  return message;
}

grpc::ByteBuffer ChunkToBuffer(ChunkFields chunk, std::span<const uint8_t> data,
                               std::shared_ptr<const void> owner) {
  chunk.data_bytes = data.size();
  const ChunkFrame frame = FrameChunk(chunk);
  auto kept = std::make_unique<std::shared_ptr<const void>>(std::move(owner));
  // gRPC takes the memory as void*, and only reads it.
  auto* const bytes = const_cast<uint8_t*>(data.data());
  const std::array<grpc::Slice, 3> slices = {
      Copied(frame.head), grpc::Slice(bytes, data.size(), &Release, kept.release()),
      Copied(frame.tail)};
  return {slices.data(), frame.tail.empty() ? size_t{2} : size_t{3}};
}

grpc::ByteBuffer LaneMessageToBuffer(OutgoingMessage message) {
  if (message.chunk.has_value()) {
    OutgoingChunk& chunk = *message.chunk;
    return ChunkToBuffer(chunk.fields, chunk.data, std::move(chunk.owner));
  }
  v1::LaneMessage control;
  control.mutable_control()->Swap(&message.control);
  return MessageToBuffer(control);
}

grpc::ByteBuffer MessageToBuffer(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice = Copied(message.SerializeAsString());
  return {&slice, 1};
}

absl::Status BufferToMessage(const grpc::ByteBuffer& buffer,
                             google::protobuf::MessageLite& message) {
  message.Clear();
  if (!buffer.Valid()) return absl::OkStatus();
  // The reader changes nothing of the buffer; its interface is older than const was thought of.
  grpc::ProtoBufferReader pieces(const_cast<grpc::ByteBuffer*>(&buffer));
  if (message.ParseFromZeroCopyStream(&pieces)) return absl::OkStatus();
  return absl::InvalidArgumentError("the message is malformed");
}

namespace {

constexpr int kMaxMessageBytes = static_cast<int>(kChunkBytes + kMessageOverheadBytes);
constexpr int kMaxStreamsPerConnection = 64;
// Bounds what comes before a call's messages: names, a token, a deadline.
constexpr int kMaxMetadataBytes = 8 << 10;
// gRPC's for an address that stays silent.
constexpr absl::Duration kEachAddress = absl::Seconds(5);

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, std::numeric_limits<int>::max()));
}

}  // namespace

absl::StatusOr<std::string> ChannelTarget(absl::string_view addresses) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, SplitAddresses(addresses));
  if (names.size() == 1) return names.front();
  // gRPC would ask a proxy for the whole list as if it were one name.
  if (std::ranges::any_of(names, [](const std::string& name) { return ProxyTo(name).used; })) {
    for (const std::string& name : names) {
      if (DialTcp(name, absl::Now() + kEachAddress).ok()) return name;
    }
    return names.front();
  }
  const absl::StatusOr<std::vector<TcpAddress>> found = ResolveAddresses(addresses);
  if (!found.ok()) return absl::UnavailableError(found.status().message());
  const std::vector<TcpAddress>& all = *found;
  // gRPC takes a list of one family: IPv4 in its mapped form is IPv6, too.
  const bool is_ipv4 = std::ranges::all_of(all, &TcpAddress::is_ipv4);
  std::string target = is_ipv4 ? "ipv4:" : "ipv6:";
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string text = all[i].ToString();
    const bool is_mapped = all[i].is_ipv4() && !is_ipv4;
    const size_t colon = text.rfind(':');
    absl::StrAppend(&target, i > 0 ? "," : "",
                    is_mapped
                        ? absl::StrCat("[::ffff:", text.substr(0, colon), "]", text.substr(colon))
                        : text);
  }
  return target;
}

ChannelSecurity SecurityTo(absl::string_view addresses, absl::string_view target,
                           ChannelSecurity security) {
  const absl::StatusOr<std::vector<std::string>> names = SplitAddresses(addresses);
  if (!names.ok() || names->size() < 2) return security;
  const auto at = std::ranges::find(*names, target);
  if (at != names->end()) {
    security.places = std::make_shared<PlacesInTurn>(*names, at - names->begin());
  }
  if (!security.encrypted || !security.server_name.empty()) return security;
  const absl::StatusOr<HostPort> first = SplitHostPort(names->front(), /*allow_any_port=*/false);
  if (first.ok()) security.server_name = first->host;
  return security;
}

namespace {

// Keeps, as long as the process lives, what gRPC 1.51 ends with its last channel and server. Its
// threads: whoever lets go waits up to 10 s for one that looks after a write which once had to
// wait. The queue of all callbacks: a thread that ends the last call may still count on it, and
// aborts the process ("assertion failed: prior > 0").
void HoldGrpc() {
  struct Held {
    // Without credentials every call over it fails at once. One with a callback holds the queue
    // from its start, and nobody waits for it: gRPC may have got no thread to end it.
    std::shared_ptr<grpc::Channel> channel = grpc::CreateChannel("", nullptr);
    grpc::GenericStub stub = grpc::GenericStub(channel);
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request = grpc::ByteBuffer(&nothing, 1);
    grpc::ByteBuffer response;
  };
  static const Held* const held = [] {
    auto* const made = new Held;
    made->stub.UnaryCall(&made->context, "/none", {}, &made->request, &made->response,
                         [](const grpc::Status&) {});
    return made;
  }();
  static_cast<void>(held);
}

std::shared_ptr<grpc::Channel> Make(const std::string& target, int connection,
                                    const ChannelSecurity& security,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  HoldGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Two pings without data between them would be the last ones: a call that waits for long, such as
  // a pull for its round, would wait on a dead connection for ever.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 500);
  // The time that one attempt may take, too: round trips for TCP, TLS and HTTP/2 over a long link,
  // to a machine that has much else to do.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  // Well below a lease, so that a coordinator that comes back finds its workers again in time.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // A resumed transfer is not a repeated one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt("causeway.connection", connection);
  const std::string& address = security.places == nullptr ? target : security.places->Now();
  const bool is_list = absl::StartsWith(address, "ipv4:") || absl::StartsWith(address, "ipv6:");
  if (is_list) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // ChannelTarget has judged it.
  if (!security.server_name.empty()) arguments.SetSslTargetNameOverride(security.server_name);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int connection,
                                           const ChannelSecurity& security) {
  return Make(address, connection, security, security.Now().credentials);
}

std::shared_ptr<grpc::Channel> RenewedChannels::Now(int connection) {
  const auto index = static_cast<size_t>(connection);
  std::vector<std::shared_ptr<grpc::Channel>> former;  // Outlives the lock.
  absl::MutexLock lock(&mutex_);
  if (security_.places != nullptr) {
    if (!channels_.empty() && channels_[0] != nullptr &&
        channels_[0]->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      security_.places->Leave(turn_);
    }
    turn_ = security_.places->turn();
  }
  const CredentialsOfFiles::Made made = security_.Now();
  if (std::exchange(generation_, made.generation) != made.generation) channels_.swap(former);
  if (channels_.size() <= index) channels_.resize(index + 1);
  std::shared_ptr<grpc::Channel>& channel = channels_[index];
  if (channel == nullptr) channel = Make(address_, connection, security_, made.credentials);
  return channel;
}

void RenewedChannels::KeepFirst() {
  std::vector<std::shared_ptr<grpc::Channel>> rest;  // Outlives the lock.
  absl::MutexLock lock(&mutex_);
  channels_.swap(rest);
  if (!rest.empty()) channels_.push_back(std::move(rest.front()));
}

void ConfigureServer(grpc::ServerBuilder& builder, const ConnectionLimits& limits) {
  HoldGrpc();
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // A peer that is gone without a word holds streams and what belongs to them.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(limits.handshake));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(limits.idle));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(limits.age));
  // A grace beyond the age would leave more connections to one peer than it uses.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                             Milliseconds(std::min(limits.grace, limits.age)));
  grpc::ResourceQuota quota("causeway");
  quota.Resize(static_cast<size_t>(limits.memory_bytes));
  builder.SetResourceQuota(quota);
}

void TuneForStreams() {
  // Belongs to gRPC 1.51; releases that lack one ignore it. Large frames, and a reader that sleeps
  // until nearly all of one has come: a fifth of the wake-ups.
  setenv("GRPC_EXPERIMENTS",
         "tcp_frame_size_tuning,tcp_rcv_lowat,peer_state_based_framing,flow_control_fixes",
         /*overwrite=*/0);
  // While a call that fails at once is tried again at intervals, nobody polls its connection but
  // gRPC's own backup, every 5 s: an address that came up took one such interval or two.
  setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "100", /*overwrite=*/0);
  // One without the other makes it worse.
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  // Debian's Abseil looks for cycles of locks, under a lock of all threads. Tests let it.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

namespace {

constexpr char kCarryMethod[] = "/causeway.v1.Exchange/Carry";

}  // namespace

class LaneDialer::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                                 public LaneStream,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<LanePeer> peer, int number, std::shared_ptr<grpc::Channel> channel)
      : peer_(std::move(peer)), number_(number), channel_(std::move(channel)), stub_(channel_) {}

  int number() const { return number_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  void Start() {
    stub_.PrepareBidiStreamingCall(&context_, kCarryMethod, {}, this);
    AddHold();  // Writes and reads are started by whoever has something to do.
    const LanePeer::LanePtr lane = peer_->Open(number_, shared_from_this());
    {
      absl::MutexLock lock(&mutex_);
      lane_ = lane;
      StartRead(&incoming_);
    }
    StartCall();
    peer_->Written(lane);
  }

  void Write(OutgoingMessage message) override {
    grpc::ByteBuffer buffer = LaneMessageToBuffer(std::move(message));
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    outgoing_.Swap(&buffer);
    StartWrite(&outgoing_);
  }
  void ReadOn() override {
    absl::MutexLock lock(&mutex_);
    if (!ended_) StartRead(&incoming_);
  }
  void End(const absl::Status& status) override {
    {
      absl::MutexLock lock(&mutex_);
      if (why_.ok()) why_ = status;
      if (!LetGo()) return;
    }
    context_.TryCancel();
    RemoveHold();
  }

  void OnReadDone(bool ok) override {
    const LanePeer::LanePtr lane = Lane();
    // gRPC 1.51 gives an empty message for what is none, such as a proxy's page: the end says why.
    const bool is_none = ok && incoming_.Length() == 0;
    if (is_none) context_.TryCancel();
    if (!ok || is_none || lane == nullptr) {
      bool releases = false;
      {
        absl::MutexLock lock(&mutex_);
        releases = LetGo();
      }
      if (releases) RemoveHold();
      return;
    }
    if (peer_->Receive(lane, TakeMessage(incoming_))) ReadOn();
  }
  void OnWriteDone(bool ok) override {
    const LanePeer::LanePtr lane = Lane();
    if (ok && lane != nullptr) peer_->Written(lane);  // Else the read says why.
  }
  void OnDone(const grpc::Status& end) override {
    absl::Status why = FromGrpcStatus(end);
    LanePeer::LanePtr lane;
    {
      absl::MutexLock lock(&mutex_);
      if (!why_.ok()) why = why_;  // This side ended it.
      lane = std::move(lane_);
    }
    if (why.ok()) why = absl::UnavailableError("the coordinator ended the lane");
    peer_->Close(lane, why);
    // The lane holds this stream, whose context holds the channel. The last to let go of a channel
    // waits for gRPC's threads, so it must not be one of them.
    lane.reset();
    absl::MutexLock lock(&mutex_);
    done_ = true;
  }

  bool done() {
    absl::MutexLock lock(&mutex_);
    return done_;
  }
  void AwaitDone() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
  }

 private:
  LanePeer::LanePtr Lane() {
    absl::MutexLock lock(&mutex_);
    return ended_ ? nullptr : lane_;
  }
  // No operation may be started any more. True for the one who is to remove the hold.
  bool LetGo() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !std::exchange(ended_, true); }

  const std::shared_ptr<LanePeer> peer_;
  const int number_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  absl::Mutex mutex_;
  LanePeer::LanePtr lane_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);  // It was ended on this side.
};

LaneDialer::~LaneDialer() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams.swap(streams_);
  }
  for (const auto& stream : streams) stream->AwaitDone();
}

void LaneDialer::Dial(int lane, const std::shared_ptr<LanePeer>& peer) {
  const auto stream = std::make_shared<Stream>(peer, lane, channel_of_(lane));
  // Outlive the lock.
  std::vector<std::shared_ptr<Stream>> done;
  {
    absl::MutexLock lock(&mutex_);
    std::erase_if(streams_, [&done](const std::shared_ptr<Stream>& one) {
      if (!one->done()) return false;
      done.push_back(one);
      return true;
    });
    streams_.push_back(stream);
  }
  stream->Start();
}

void LaneDialer::EndOutdated() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = streams_;
  }
  for (const auto& stream : streams) {
    if (stream->done() || stream->channel() == channel_of_(stream->number())) continue;
    stream->End(Renewal());
  }
}

}  // namespace causeway
