#include "server/ctl/state_pull.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <bit>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/transfer/chunk_message.h"
#include "common/transfer/chunk_set.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "server/ctl/stall_watch.h"

namespace causeway::server {
namespace {

constexpr int kTries = 5;
static_assert(std::endian::native == std::endian::little, "states travel as little-endian fp32");

// Copies the chunk to its place in `object`.
absl::Status TakeChunk(const v1::Chunk& chunk, std::span<uint8_t> object, ChunkSet& held) {
  const std::string& data = chunk.data();
  const ChunkFields fields = {.offset = chunk.offset(),
                              .checksum = chunk.checksum(),
                              .unpacked_bytes = chunk.unpacked_bytes(),
                              .data_bytes = data.size()};
  ASSIGN_OR_RETURN(const int64_t index, CheckChunk(fields, static_cast<int64_t>(object.size())));
  const FlatMessage bytes({reinterpret_cast<const uint8_t*>(data.data()), data.size()});
  const auto leaf =
      object.subspan(static_cast<size_t>(fields.offset), static_cast<size_t>(held.Size(index)));
  RETURN_IF_ERROR(ReadChunk(bytes, fields, leaf).status());
  held.Add(index);
  return absl::OkStatus();
}

// One try. Fills `values` and returns their version. `came` is told how many bytes of them are
// there.
absl::StatusOr<int64_t> PullFragment(v1::Exchange::Stub& exchange, const std::string& run_id,
                                     int fragment, std::span<float> values,
                                     const StatePullOptions& options,
                                     const std::function<void(int64_t)>& came) {
  v1::PullRequest request;
  request.set_run_id(run_id);
  request.set_object(v1::PullRequest::STATE);
  request.set_fragment(fragment);
  grpc::ClientContext context;
  if (options.deadline != absl::InfiniteFuture()) {
    context.set_deadline(absl::ToChronoTime(options.deadline));
  }
  StallWatch watch(context, options.stall);
  const std::unique_ptr<grpc::ClientReader<v1::PullResponse>> stream =
      exchange.Pull(&context, request);
  const auto expected_bytes = static_cast<int64_t>(values.size_bytes());
  v1::PullHeader header;
  const std::span<uint8_t> object(reinterpret_cast<uint8_t*>(values.data()), values.size_bytes());
  ChunkSet held(expected_bytes);
  v1::PullResponse response;
  absl::Status broken;
  int64_t bytes = 0;
  while (broken.ok() && stream->Read(&response)) {
    watch.Moved();
    if (response.has_header()) {
      header = response.header();
      if (header.total_bytes() != expected_bytes) {
        broken = absl::DataLossError(absl::StrCat(
            "it has ", header.total_bytes(), " bytes, the configuration says ", expected_bytes));
      }
    } else {
      broken = TakeChunk(response.chunk(), object, held);
      bytes += kChunkBytes;
      came(std::min(bytes, expected_bytes));
    }
  }
  if (!broken.ok()) {
    context.TryCancel();
    stream->Finish();
    return broken;
  }
  const absl::Status ended = FromGrpcStatus(stream->Finish());
  if (watch.stalled()) {
    return absl::UnavailableError(
        absl::StrCat("nothing came for ", absl::FormatDuration(options.stall)));
  }
  RETURN_IF_ERROR(ended);
  if (!held.complete() || TreeHash(object) != header.object_hash()) {
    return absl::DataLossError("it does not hash to what its header announced");
  }
  return header.round();
}

bool IsWorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsNotFound(status) || absl::IsDataLoss(status) ||
         absl::IsDeadlineExceeded(status);
}

}  // namespace

absl::StatusOr<PublishedState> PullPublishedState(const std::shared_ptr<grpc::Channel>& channel,
                                                  const std::string& run_id,
                                                  const FragmentPlan& plan,
                                                  const StatePullOptions& options) {
  const std::unique_ptr<v1::Exchange::Stub> exchange = v1::Exchange::NewStub(channel);
  PublishedState state;
  state.parameters.resize(static_cast<size_t>(plan.arena_size()));
  const int64_t all_bytes = plan.arena_size() * static_cast<int64_t>(sizeof(float));
  int64_t bytes_before = 0;
  for (int fragment = 0; fragment < plan.fragments(); ++fragment) {
    const FragmentRange& range = plan.range(fragment);
    const std::span<float> values =
        std::span(state.parameters)
            .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    absl::StatusOr<int64_t> version;
    absl::Duration pause = absl::Seconds(1);
    for (int i = 0; i < kTries; ++i) {
      if (i > 0) {
        absl::SleepFor(std::min(pause, options.deadline - absl::Now()));
        pause *= 2;
      }
      version = PullFragment(*exchange, run_id, fragment, values, options, [&](int64_t bytes) {
        options.progress(bytes_before + bytes, all_bytes);
      });
      if (version.ok() || !IsWorthAnotherTry(version.status()) || absl::Now() >= options.deadline) {
        break;
      }
    }
    RETURN_IF_ERROR(Annotate(version.status(), absl::StrCat("fragment ", fragment)));
    state.versions.push_back(*version);
    bytes_before += static_cast<int64_t>(values.size_bytes());
  }
  return state;
}

}  // namespace causeway::server
