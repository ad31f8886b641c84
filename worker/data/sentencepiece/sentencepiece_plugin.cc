#include <sentencepiece_processor.h>

#include <memory>

#include "worker/data/sentencepiece_library.h"

namespace causeway::worker {
namespace {

class Model final : public SentencePieceLibrary {
 public:
  std::string Load(std::string_view model) {
    const sentencepiece::util::Status status = processor_.LoadFromSerializedProto(model);
    return status.ok() ? "" : status.ToString();
  }

  int size() const override { return processor_.GetPieceSize(); }
  int bos_id() const override { return processor_.bos_id(); }
  int eos_id() const override { return processor_.eos_id(); }
  std::string PieceOf(int id) const override { return processor_.IdToPiece(id); }
  int IdOf(std::string_view piece) const override { return processor_.PieceToId(piece); }

  std::string Encode(std::string_view text, std::vector<int32_t>& ids) const override {
    std::vector<int> found;
    const sentencepiece::util::Status status = processor_.Encode(text, &found);
    if (!status.ok()) return status.ToString();
    ids.insert(ids.end(), found.begin(), found.end());
    return "";
  }
  std::string Decode(std::span<const int32_t> ids, std::string& text) const override {
    const sentencepiece::util::Status status =
        processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
    return status.ok() ? "" : status.ToString();
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace
}  // namespace causeway::worker

extern "C" causeway::worker::SentencePieceLibrary* CausewayLoadSentencePiece(const char* model,
                                                                             size_t size,
                                                                             std::string* error) {
  auto library = std::make_unique<causeway::worker::Model>();
  *error = library->Load({model, size});
  return error->empty() ? library.release() : nullptr;
}
