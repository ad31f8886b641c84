#include "common/files/json.h"

#include <google/protobuf/descriptor.h>

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

// Says what is wrong with JSON of `size` bytes: of a parser's report that byte `position`
// (from 1), at the end of `token`, cannot stand there.
std::string DescribeJsonError(size_t size, size_t position, absl::string_view token) {
  constexpr size_t kShown = 24;
  if (position > size) {
    return absl::StrCat("expected JSON, but it ends after ", size,
                        " bytes in the middle: is it whole?");
  }
  if (token.size() > kShown) token.remove_prefix(token.size() - kShown);
  return absl::StrCat("expected JSON, but byte ", position, ", at the end of \"",
                      absl::CHexEscape(token), "\", cannot stand there");
}

// Walks the text once, keeping nothing but the keys of the objects that are open.
class LimitChecker final : public nlohmann::json_sax<nlohmann::json> {
 public:
  LimitChecker(const JsonLimits& limits, size_t size) : limits_(limits), size_(size) {}

  const absl::Status& status() const { return status_; }

  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool binary(binary_t&) override { return Count(); }
  bool start_object(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(); }
  bool end_array() override { return Close(); }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) {
      return Refuse(absl::StrCat("an object names the key \"", key, "\" twice"));
    }
    return Count();
  }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception&) override {
    return Refuse(DescribeJsonError(size_, position, token));
  }

 private:
  bool Refuse(absl::string_view reason) {
    status_ = absl::InvalidArgumentError(reason);
    return false;
  }
  bool Count() {
    if (++values_ <= limits_.values) return true;
    return Refuse(absl::StrCat("more than ", limits_.values, " values"));
  }
  bool Open() {
    keys_.emplace_back();
    if (keys_.size() > static_cast<size_t>(limits_.depth)) {
      return Refuse(absl::StrCat("objects and arrays nest more than ", limits_.depth, " deep"));
    }
    return Count();
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  const size_t size_;
  absl::Status status_;
  int64_t values_ = 0;
  std::vector<absl::flat_hash_set<std::string>> keys_;  // One set per open level; empty for arrays.
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseLimitedJson(absl::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON of ", text.size(), " bytes; at most ", limits.bytes, " are read"));
  }
  // The library throws in few places and fewer versions; nothing thrown leaves this function.
  try {
    LimitChecker checker(limits, text.size());
    nlohmann::json::sax_parse(text.begin(), text.end(), &checker);
    RETURN_IF_ERROR(checker.status());
    return nlohmann::json::parse(text.begin(), text.end());
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
