#include "worker/site/site_arguments.h"

#include <algorithm>

#include "common/base/text.h"
#include "worker/member/joining.h"

namespace causeway::worker {
namespace {

constexpr int64_t kMaxTensors = 1 << 20;
constexpr int kMaxRank = 8;
constexpr int kMaxDevices = 64;

std::string Text(const char* text) { return text == nullptr ? "" : text; }

absl::StatusOr<absl::Duration> Seconds(absl::string_view name, double seconds,
                                       absl::Duration otherwise) {
  if (seconds == 0) return otherwise;
  if (!(seconds > 0 && seconds <= absl::ToDoubleSeconds(kLongest))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "options->", name, " must be more than 0 s and at most a year, or 0; it is ", seconds));
  }
  return absl::Seconds(seconds);
}

absl::Status BoardSite(const std::string& identity, SiteJoin& join) {
  MemberOptions& member = join.member;
  if (member.security.UsesTls() || !member.security.token_file.empty() ||
      member.security.insecure) {
    return absl::InvalidArgumentError(
        "an invitation brings its own certificates: leave tls, token_file and insecure out");
  }
  absl::StatusOr<Boarded> boarded =
      Board(member.coordinator, identity, member.connect_timeout, {Role::kWorker}, member.stop);
  if (absl::IsNotFound(boarded.status())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "coordinator: expected HOST:PORT, an invitation, or a run that this machine has boarded; ",
        boarded.status().message()));
  }
  RETURN_IF_ERROR(boarded.status());
  if (!member.worker_id.empty() && member.worker_id != boarded->identity.name) {
    return absl::InvalidArgumentError(absl::StrCat("the invitation is for ", boarded->identity.name,
                                                   ", and id is ", member.worker_id,
                                                   ": leave id out"));
  }
  member.worker_id = boarded->identity.name;
  member.security = boarded->security;
  member.coordinator = boarded->coordinator;
  join.keeper = std::make_shared<IdentityKeeper>(*std::move(boarded));
  return absl::OkStatus();
}

}  // namespace

absl::Status NullArgument(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(name, " must not be NULL"));
}

absl::Status CheckSize(absl::string_view name, size_t size, size_t expected) {
  if (size == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, "->size is ", size, ", this library (ABI version ", CAUSEWAY_ABI_VERSION, ") expects ",
      expected, ": set it to sizeof, and use the header of the same version"));
}

absl::StatusOr<SiteJoin> ReadOptions(const causeway_site_options* options) {
  if (options == nullptr) return NullArgument("options");
  RETURN_IF_ERROR(CheckSize("options", options->size, sizeof(*options)));
  SiteJoin join;
  MemberOptions& member = join.member;
  member.coordinator = Text(options->coordinator);
  member.worker_id = Text(options->id);
  member.security.ca_file = Text(options->tls_ca);
  member.security.cert_file = Text(options->tls_cert);
  member.security.key_file = Text(options->tls_key);
  member.security.server_name = Text(options->tls_server_name);
  member.security.token_file = Text(options->token_file);
  member.security.insecure = options->insecure != 0;
  member.own_data = options->data_slot == 0;
  member.any_model = true;
  member.output = Text(options->output);
  member.tensorboard = Text(options->tensorboard);
  member.metrics_address = Text(options->metrics);
  if (!member.metrics_address.empty()) {
    RETURN_IF_ERROR(Annotate(CheckAddress(member.metrics_address, /*allow_any_port=*/true),
                             "options->metrics"));
  }
  if (options->threads < 0 || options->threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("options->threads must be 0 .. ", kMaxThreads, "; it is ", options->threads));
  }
  member.threads = std::max(1, options->threads);
  if (options->connections < 0 || options->connections > kMaxConnections) {
    return absl::InvalidArgumentError(
        absl::StrCat("options->connections must be 0 (as many as help) .. ", kMaxConnections,
                     "; it is ", options->connections));
  }
  member.connections = options->connections;
  ASSIGN_OR_RETURN(member.max_upload_bytes_per_second,
                   BytesPerSecond("options->max_upload_mbit", options->max_upload_mbit));
  ASSIGN_OR_RETURN(member.max_download_bytes_per_second,
                   BytesPerSecond("options->max_download_mbit", options->max_download_mbit));
  ASSIGN_OR_RETURN(member.connect_timeout,
                   Seconds("connect_timeout_s", options->connect_timeout_s, absl::Seconds(30)));
  if (options->stop != nullptr) {
    member.stop = [stop = options->stop] { return *stop != 0; };
  }
  const std::string identity = Text(options->identity);
  if (MeansBoarding(member.coordinator)) {
    RETURN_IF_ERROR(BoardSite(identity, join));
  } else if (!identity.empty()) {
    return absl::InvalidArgumentError(
        "identity is the folder of an invitation: give its line as coordinator, or leave it out");
  } else {
    RETURN_IF_ERROR(Annotate(SplitAddresses(member.coordinator).status(), "coordinator"));
  }
  ASSIGN_OR_RETURN(join.drain_timeout,
                   Seconds("drain_timeout_s", options->drain_timeout_s, absl::Seconds(20)));
  const std::string control = Text(options->congestion_control);
  ASSIGN_OR_RETURN(member.congestion_control,
                   ChooseCongestionControl(control.empty() ? "auto" : control));
  join.description.device = options->device == nullptr ? "not said" : options->device;
  if (options->software != nullptr) join.description.software = options->software;
  if (options->initial_values != nullptr) {
    join.initial_values = [give = options->initial_values,
                           context = options->initial_values_context](size_t tensor,
                                                                      std::span<float> values) {
      return give(context, static_cast<int64_t>(tensor), 0, std::ssize(values), values.data()) == 0;
    };
  }
  return join;
}

absl::StatusOr<std::vector<TensorShare>> ReadShares(const causeway_site_options& options) {
  if (options.share_count < 0 || (options.share_count > 0 && options.shares == nullptr)) {
    return NullArgument("options->shares");
  }
  std::vector<TensorShare> shares;
  for (const causeway_share& share :
       std::span(options.shares, static_cast<size_t>(options.share_count))) {
    shares.push_back({share.tensor, share.begin, share.end, share.rank});
  }
  return shares;
}

absl::StatusOr<std::optional<DeviceOptions>> ReadDevice(const causeway_device* device) {
  if (device == nullptr) return std::nullopt;
  RETURN_IF_ERROR(CheckSize("options->on_device", device->size, sizeof(*device)));
  if (device->value_count < 0 || (device->value_count > 0 && device->values == nullptr)) {
    return NullArgument("options->on_device->values");
  }
  if (device->device_count < 1 || device->device_count > kMaxDevices ||
      device->devices == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("options->on_device->devices must be 1 .. ",
                                                   kMaxDevices, " numbers of devices; ",
                                                   device->device_count, " came"));
  }
  DeviceOptions options = {.devices = {device->devices, device->devices + device->device_count},
                           .published_on_host = device->published_on_host != 0,
                           .values = {device->values, device->values + device->value_count}};
  for (const causeway_device_values& values : options.values) {
    if (std::ranges::find(options.devices, values.device) != options.devices.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("options->on_device->values has values of tensor ", values.tensor,
                     " on device ", values.device, ", which is none of devices: name it there"));
  }
  return options;
}

std::vector<TensorShare> SharesOf(const DeviceOptions& options) {
  std::vector<TensorShare> shares;
  for (const causeway_device_values& values : options.values) {
    const auto rank = std::ranges::find(options.devices, values.device) - options.devices.begin();
    shares.push_back({values.tensor, values.begin, values.end, static_cast<int>(rank)});
  }
  return shares;
}

absl::StatusOr<std::vector<GivenTensor>> ReadTensors(const causeway_tensor* tensors,
                                                     int64_t count) {
  if (tensors == nullptr) return NullArgument("tensors");
  if (count < 1 || count > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_count must be 1 .. 2^20; it is ", count));
  }
  std::vector<GivenTensor> given;
  for (int64_t i = 0; i < count; ++i) {
    const causeway_tensor& tensor = tensors[i];
    if (tensor.name == nullptr || tensor.name[0] == '\0') {
      return absl::InvalidArgumentError(absl::StrCat("tensors[", i, "] has no name"));
    }
    if (tensor.rank < 0 || tensor.rank > kMaxRank || (tensor.rank > 0 && tensor.shape == nullptr)) {
      return absl::InvalidArgumentError(absl::StrCat("tensors[", i, "] (", tensor.name,
                                                     ") must have a shape of 0 .. ", kMaxRank,
                                                     " sizes; its rank is ", tensor.rank));
    }
    GivenTensor& one = given.emplace_back();
    one.name = tensor.name;
    one.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  }
  return given;
}

}  // namespace causeway::worker
