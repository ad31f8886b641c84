#include "worker/data/jsonl.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files/limited_json.h"

namespace causeway::worker {
namespace {

constexpr int kMaxJsonDepth = 64;

// Takes one field of the outermost object and builds nothing of the rest.
class FieldReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  FieldReader(const std::string& field, size_t size, std::string& text)
      : field_(field), size_(size), text_(text) {}

  absl::Status status() const {
    if (!error_.empty()) return absl::InvalidArgumentError(error_);
    if (!found_) return absl::InvalidArgumentError(absl::StrCat("there is no \"", field_, "\""));
    return absl::OkStatus();
  }

  bool null() override { return Other(); }
  bool boolean(bool) override { return Other(); }
  bool number_integer(number_integer_t) override { return Other(); }
  bool number_unsigned(number_unsigned_t) override { return Other(); }
  bool number_float(number_float_t, const string_t&) override { return Other(); }
  bool binary(binary_t&) override { return Other(); }
  bool string(string_t& value) override {
    if (depth_ == 0) return Other();
    if (IsField()) {
      text_ = std::move(value);
      found_ = true;
    }
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ > 0 && IsField()) return Other();
    return Open();
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0 || IsField()) return Other();
    return Open();
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) at_field_ = key == field_;
    return true;
  }
  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception&) override {
    error_ = DescribeJsonError(size_, position, token);
    return false;
  }

 private:
  bool IsField() const { return depth_ == 1 && at_field_; }
  bool Open() {
    if (++depth_ <= kMaxJsonDepth) return true;
    error_ = absl::StrCat("it nests more than ", kMaxJsonDepth, " deep");
    return false;
  }
  // A value that is no text.
  bool Other() {
    if (depth_ == 0) {
      error_ = "it is no JSON object";
    } else if (IsField()) {
      error_ = absl::StrCat("its \"", field_, "\" is no text");
    }
    return error_.empty();
  }

  const std::string& field_;
  const size_t size_;
  std::string& text_;
  std::string error_;
  int depth_ = 0;
  bool at_field_ = false;
  bool found_ = false;
};

}  // namespace

absl::Status ReadJsonLine(absl::string_view line, const std::string& field, std::string& text) {
  FieldReader reader(field, line.size(), text);
  // The library throws in few places and fewer versions; nothing thrown leaves this function.
  try {
    nlohmann::json::sax_parse(line.begin(), line.end(), &reader);
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError("it is no JSON that this program can read");
  }
  return reader.status();
}

}  // namespace causeway::worker
