#include "common/base/text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace causeway {

std::string WithoutSecret(absl::string_view text) {
  const size_t scheme = text.find("causeway://");
  const size_t dot = text.rfind('.');
  const bool has_one = scheme != absl::string_view::npos && dot != absl::string_view::npos;
  if (has_one && dot > scheme)
    return absl::StrCat(text.substr(0, std::min<size_t>(dot, 200)), ".***");
  return std::string(text.substr(0, 200));
}

absl::Status CheckAddress(absl::string_view address, bool allow_any_port) {
  const size_t colon = std::min(address.rfind(':'), address.size());
  const absl::string_view host = address.substr(0, colon);
  const absl::string_view digits = address.substr(std::min(colon + 1, address.size()));
  // An IPv6 address stands in brackets: "::1" would otherwise be the port 1 of the host ":".
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const bool host_fits = !host.empty() && host.find_first_of(" \t\n/") == absl::string_view::npos &&
                         (bracketed || host.find_first_of(":[]") == absl::string_view::npos);
  const bool all_digits = !digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  int port = 0;
  if (!host_fits || !all_digits || !absl::SimpleAtoi(digits, &port) || port > 65535 ||
      port < (allow_any_port ? 0 : 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected HOST:PORT, for example 127.0.0.1:7070; got \"", WithoutSecret(address), "\"",
        absl::StrContains(address, "causeway://") ? " (an invitation is for --join)" : ""));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> SplitAddresses(absl::string_view addresses) {
  if (absl::StrContains(addresses, "causeway://")) return CheckAddress(addresses, false);
  const std::vector<std::string> each = absl::StrSplit(addresses, ',');
  for (const std::string& address : each) RETURN_IF_ERROR(CheckAddress(address, false));
  return each;
}

bool IsLoopback(absl::string_view address) {
  const absl::string_view host = address.substr(0, address.rfind(':'));
  if (absl::EqualsIgnoreCase(host, "localhost") || host == "[::1]") return true;
  const std::vector<absl::string_view> parts = absl::StrSplit(host, '.');
  if (parts.size() != 4 || parts[0] != "127") return false;
  for (const absl::string_view part : parts) {
    int value = 0;
    if (part.size() > 3 || !absl::SimpleAtoi(part, &value) || value < 0 || value > 255)
      return false;
  }
  return true;
}

absl::StatusOr<HostPort> SplitHostPort(absl::string_view address, bool allow_any_port) {
  RETURN_IF_ERROR(CheckAddress(address, allow_any_port));
  const size_t colon = address.rfind(':');
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  HostPort result;
  result.host = std::string(host);
  result.port = std::string(address.substr(colon + 1));
  return result;
}

std::string Printable(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte < 0x20 || byte == 0x7F) {
      result += '?';
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 .. U+009F in UTF-8.
      result += '?';
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace causeway
