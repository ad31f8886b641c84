// Google's SentencePiece library behind types of the standard library, in a file of its own.
//
// Debian's libsentencepiece brings a copy of protobuf along whose symbols are those of the library
// that everything else here uses, in another version: a program that links both crashes before
// main(). So the library is linked by a plugin alone (sentencepiece_plugin.cc), which is opened
// when a model is, and whose symbols bind to each other first. Its header names absl::string_view
// for itself, which is one more reason to keep it where no Abseil is.
#ifndef CAUSEWAY_WORKER_DATA_SENTENCEPIECE_LIBRARY_H_
#define CAUSEWAY_WORKER_DATA_SENTENCEPIECE_LIBRARY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace causeway::worker {

// The plugin's file, beside the program, and the function in it.
inline constexpr char kSentencePiecePlugin[] = "libcauseway_sentencepiece.so";
inline constexpr char kSentencePieceLoader[] = "CausewayLoadSentencePiece";

// A model. Immutable and thread-safe. Functions that can fail return an error's text, empty if
// there is none.
class SentencePieceLibrary {
 public:
  virtual ~SentencePieceLibrary() = default;

  virtual int size() const = 0;
  virtual int bos_id() const = 0;  // -1: there is none.
  virtual int eos_id() const = 0;
  virtual std::string PieceOf(int id) const = 0;
  virtual int IdOf(std::string_view piece) const = 0;  // The unknown token's if there is none.

  virtual std::string Encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  virtual std::string Decode(std::span<const int32_t> ids, std::string& text) const = 0;
};

// The plugin's function: returns null, with `error`, if the bytes are no model.
using SentencePieceLoader = SentencePieceLibrary* (*)(const char* model, size_t size,
                                                      std::string* error);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_SENTENCEPIECE_LIBRARY_H_
