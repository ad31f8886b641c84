#include "common/files/json.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"

namespace causeway {
namespace {

// Says what is wrong with a text whose byte `position` (from 1) cannot stand there.
std::string DescribeJsonError(absl::string_view text, size_t position) {
  constexpr size_t kShown = 24;
  if (position > text.size()) {
    return absl::StrCat("expected JSON, but it ends after ", text.size(),
                        " bytes in the middle: is it whole?");
  }
  const size_t begin = position - std::min(position, kShown);
  return absl::StrCat("expected JSON, but byte ", position, ", at the end of \"",
                      absl::CHexEscape(text.substr(begin, position - begin)),
                      "\", cannot stand there");
}

// What goes beyond a limit: leaves no function but the one that parses.
struct Refusal {
  std::string why;
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseLimitedJson(absl::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON of ", text.size(), " bytes; at most ", limits.bytes, " are read"));
  }
  int64_t values = 0;
  std::vector<absl::flat_hash_set<std::string>> keys;  // One set per open level; empty for arrays.
  using Event = nlohmann::json::parse_event_t;
  const auto check = [&](int /*depth*/, Event event, nlohmann::json& parsed) {
    if (event == Event::object_end || event == Event::array_end) {
      keys.pop_back();
      return true;
    }
    if (++values > limits.values)
      throw Refusal{absl::StrCat("more than ", limits.values, " values")};
    if (event == Event::object_start || event == Event::array_start) {
      keys.emplace_back();
      if (keys.size() > static_cast<size_t>(limits.depth)) {
        throw Refusal{absl::StrCat("objects and arrays nest more than ", limits.depth, " deep")};
      }
    } else if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw Refusal{
          absl::StrCat("an object names the key \"", parsed.get<std::string>(), "\" twice")};
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const Refusal& refusal) {
    return absl::InvalidArgumentError(refusal.why);
  } catch (const nlohmann::json::parse_error& error) {
    return absl::InvalidArgumentError(DescribeJsonError(text, error.byte));
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError("it is no JSON that this program can read");
  }
}

absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view source,
                                               const JsonLimits& limits) {
  absl::StatusOr<nlohmann::json> json = ParseLimitedJson(text, limits);
  if (!json.ok()) return Annotate(json.status(), source);
  if (!json->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": this is no JSON object"));
  }
  return json;
}

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::json;

json Number(double value) { return std::isfinite(value) ? json(value) : json(); }

json Unsigned(const FieldDescriptor& field, uint64_t value) {
  return field.type() == FieldDescriptor::TYPE_FIXED64 ? json(HashToHex(value)) : json(value);
}

// Converts an element of a field that is repeated; else `index` is -1.
json Value(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& of = *message.GetReflection();
  const auto get = [&](auto single, auto repeated) {
    return index < 0 ? (of.*single)(message, &field) : (of.*repeated)(message, &field, index);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Unsigned(field, get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat));
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return get(&Reflection::GetString, &Reflection::GetRepeatedString);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (index >= 0) return MessageToJson(of.GetRepeatedMessage(message, &field, index));
      if (of.HasField(message, &field)) return MessageToJson(of.GetMessage(message, &field));
  }
  return json();
}

}  // namespace

json MessageToJson(const Message& message) {
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  json result = json::object();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    if (!field.is_repeated()) {
      result[field.name()] = Value(message, field, -1);
      continue;
    }
    json& array = result[field.name()] = json::array();
    const int size = message.GetReflection()->FieldSize(message, &field);
    for (int j = 0; j < size; ++j) array.push_back(Value(message, field, j));
  }
  return result;
}

std::string JsonText(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

}  // namespace causeway
