// The part of causeway_site.h for sites of several processes, and for tensors on devices.
#include "common/params/fragment_plan.h"
#include "worker/site/site_handle.h"

namespace causeway::worker {
namespace {

// Its values on devices, or why there are none.
absl::StatusOr<std::span<const std::unique_ptr<DeviceValues>>> DevicesOf(
    const causeway_site& site) {
  const std::span<const std::unique_ptr<DeviceValues>> devices = ValuesOf(site).devices;
  if (!devices.empty()) return devices;
  return absl::FailedPreconditionError(
      "this site has no values on a device: it joined without options.on_device, and its values "
      "cross in the arena");
}

// Has each device do that in its stream.
template <typename Body>
absl::Status OnDevices(const causeway_site& site, void** streams, const Body& body) {
  ASSIGN_OR_RETURN(const auto devices, DevicesOf(site));
  if (streams == nullptr) return NullArgument("streams");
  for (size_t i = 0; i < devices.size(); ++i) {
    RETURN_IF_ERROR(body(*devices[i], streams[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const int32_t>> ReadFragments(const causeway_site& site,
                                                       const int32_t* fragments, int32_t count) {
  if (count < 0 || (count > 0 && fragments == nullptr)) return NullArgument("fragments");
  const std::span<const int32_t> given(fragments, static_cast<size_t>(count));
  const int all = ValuesOf(site).plan.fragments();
  for (const int32_t fragment : given) {
    if (fragment < 0 || fragment >= all) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no fragment ", fragment, ": they are 0 .. ", all - 1));
    }
  }
  return given;
}

}  // namespace

// Functions of C have one name, in whatever namespace they are defined.
extern "C" {

int causeway_site_follow(const causeway_site_options* options, const causeway_tensor* tensors,
                         int64_t tensor_count, const void* start, size_t start_bytes,
                         causeway_site** site, causeway_error* error) {
  return Guarded(error, [&]() -> absl::Status {
    if (site == nullptr) return NullArgument("site");
    *site = nullptr;
    if (options == nullptr) return NullArgument("options");
    if (start == nullptr) return NullArgument("start");
    RETURN_IF_ERROR(CheckSize("options", options->size, sizeof(*options)));
    SiteJoin join;
    RETURN_IF_ERROR(ReadRanks(*options, /*leads=*/false, join));
    ASSIGN_OR_RETURN(std::vector<GivenTensor> given, ReadTensors(tensors, tensor_count));
    v1::RunConfig config;
    if (start_bytes == 0 || !config.ParseFromArray(start, static_cast<int>(start_bytes))) {
      return absl::InvalidArgumentError(
          "start is not what options->start of rank 0 got: all ranks must be of one version");
    }
    ASSIGN_OR_RETURN(FragmentPlan plan, FragmentPlan::Create(config));
    PrepareProcess();
    auto follows = std::make_unique<causeway_site>(*options);
    const LogHandOut log(options->log, options->log_context);
    follows->follower = std::make_unique<Follower>(std::move(config), std::move(plan));
    Follower& follower = *follows->follower;
    RETURN_IF_ERROR(follower.values.Match(given, join.shares, join.ranks));
    const DeviceHold device(join.device.has_value() ? join.device->devices.front() : -1);
    RETURN_IF_ERROR(follower.values.Open(join.links->rank(), join.device));
    ASSIGN_OR_RETURN(follower.rank,
                     FollowingRank::Open(*join.links, follower.plan, *follower.values.shards,
                                         follower.config.sync(),
                                         [&follower] { return follower.values.MakePart(); }));
    *site = follows.release();
    return absl::OkStatus();
  });
}

int causeway_site_pieces(const causeway_site* site, int32_t rank, const causeway_piece** pieces,
                         int64_t* count, causeway_error* error) {
  return WithEither(site, error, [&]() -> absl::Status {
    if (pieces == nullptr || count == nullptr) return NullArgument("pieces or count");
    const std::vector<std::vector<causeway_piece>>& all = ValuesOf(*site).pieces;
    if (rank < 0 || rank >= std::ssize(all)) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no rank ", rank, ": this site has ", all.size(),
                       all.empty() ? ", as it joined without links" : ""));
    }
    *pieces = all[static_cast<size_t>(rank)].data();
    *count = std::ssize(all[static_cast<size_t>(rank)]);
    return absl::OkStatus();
  });
}

int causeway_device_check(int32_t device, causeway_error* error) {
  return Guarded(error, [&] { return CheckDeviceValues(device); });
}

int causeway_site_gather(causeway_site* site, const int32_t* fragments, int32_t count,
                         void** streams, causeway_error* error) {
  return WithEither(site, error, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::span<const int32_t> given, ReadFragments(*site, fragments, count));
    return OnDevices(*site, streams, [&](DeviceValues& device, void* stream) {
      return device.Gather(given, stream);
    });
  });
}

int causeway_site_scatter(causeway_site* site, const int32_t* fragments, int32_t count,
                          int32_t published, void** streams, causeway_error* error) {
  return WithEither(site, error, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const std::span<const int32_t> given, ReadFragments(*site, fragments, count));
    return OnDevices(*site, streams, [&](DeviceValues& device, void* stream) {
      return device.Scatter(given, published != 0, stream);
    });
  });
}

int causeway_site_move(causeway_site* site, const causeway_device_values* values,
                       int64_t value_count, causeway_error* error) {
  return WithEither(site, error, [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const auto devices, DevicesOf(*site));
    if (value_count < 0 || (values == nullptr && value_count > 0)) return NullArgument("values");
    const std::span given(values, static_cast<size_t>(value_count));
    for (const auto& device : devices) RETURN_IF_ERROR(device->CheckMove(given));
    for (const auto& device : devices) RETURN_IF_ERROR(device->Move(given));
    return absl::OkStatus();
  });
}

int causeway_site_local(causeway_site* site, const causeway_range* range, int32_t set,
                        float* values, causeway_error* error) {
  return WithSite(site, error, [&](ArenaSite& joined) -> absl::Status {
    if (range == nullptr || values == nullptr) return NullArgument("range or values");
    const FragmentPlan& plan = joined.member().plan();
    for (int i = 0; i < plan.fragments(); ++i) {
      const int64_t first = range->arena_offset - plan.range(i).begin;
      if (first < 0 || range->count < 0 || first + range->count > plan.range(i).size()) continue;
      const std::span<float> host(values, static_cast<size_t>(range->count));
      return set != 0 ? joined.SetLocal(i, first, host) : joined.CopyLocal(i, first, host);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        range->count, " values from ", range->arena_offset, " on are not in one fragment"));
  });
}

int causeway_links_open(int32_t rank, int32_t ranks, causeway_links** links,
                        causeway_error* error) {
  return Guarded(error, [&]() -> absl::Status {
    if (links == nullptr) return NullArgument("links");
    *links = nullptr;
    if (ranks < 2 || rank < 0 || rank >= ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat("a site of several ranks has 2 or more, numbered from 0 on; rank ", rank,
                       " of ", ranks, " came"));
    }
    *links = new causeway_links(rank, ranks);
    return absl::OkStatus();
  });
}

int causeway_links_outgoing(causeway_links* links, int32_t* rank, const void** bytes, size_t* size,
                            causeway_error* error) {
  return Guarded(error, [&]() -> absl::Status {
    if (links == nullptr) return NullArgument("links");
    if (rank == nullptr || bytes == nullptr || size == nullptr) {
      return NullArgument("rank, bytes or size");
    }
    std::optional<SiteLinks::Message> message = links->links.NextOutgoing();
    *rank = message.has_value() ? message->rank : -1;
    links->last = message.has_value() ? std::move(message->bytes) : "";
    *bytes = links->last.data();
    *size = links->last.size();
    return absl::OkStatus();
  });
}

int causeway_links_incoming(causeway_links* links, int32_t rank, const void* bytes, size_t size,
                            causeway_error* error) {
  return Guarded(error, [&]() -> absl::Status {
    if (links == nullptr) return NullArgument("links");
    if (bytes == nullptr && size > 0) return NullArgument("bytes");
    return links->links.TakeIncoming({rank, std::string(static_cast<const char*>(bytes), size)});
  });
}

void causeway_links_close(causeway_links* links) {
  if (links != nullptr) links->links.Close();
}

void causeway_links_free(causeway_links* links) { delete links; }

}  // extern "C"
}  // namespace causeway::worker
