#include "common/files/message_json.h"

#include <google/protobuf/descriptor.h>

#include <cmath>
#include <string>

#include "common/base/checksum.h"

namespace causeway {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::json;

json Number(double value) { return std::isfinite(value) ? json(value) : json(); }

json Unsigned(const FieldDescriptor& field, uint64_t value) {
  return field.type() == FieldDescriptor::TYPE_FIXED64 ? json(HashToHex(value)) : json(value);
}

json Element(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetRepeatedInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetRepeatedInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetRepeatedUInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Unsigned(field, reflection.GetRepeatedUInt64(message, &field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(reflection.GetRepeatedDouble(message, &field, index));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(reflection.GetRepeatedFloat(message, &field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetRepeatedBool(message, &field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetRepeatedEnum(message, &field, index)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetRepeatedString(message, &field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(reflection.GetRepeatedMessage(message, &field, index));
  }
  return json();
}

json Single(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Unsigned(field, reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(reflection.GetFloat(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetEnum(message, &field)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (!reflection.HasField(message, &field)) return json();
      return MessageToJson(reflection.GetMessage(message, &field));
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
      result[field.name()] = Single(message, field);
      continue;
    }
    json& array = result[field.name()] = json::array();
    const int size = message.GetReflection()->FieldSize(message, &field);
    for (int j = 0; j < size; ++j) array.push_back(Element(message, field, j));
  }
  return result;
}

}  // namespace causeway
