#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_FINDINGS_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_FINDINGS_H_

#include <string>
#include <vector>

namespace rcsock::tools {

enum class Verdict {
  kGood,
  kNote,  // worth knowing; nothing is wrong
  kWarn,  // works, but not as well as it could
  kBad,   // a lane that could be here is not
};

// A finding: what was examined, what was found, and the command that mends it.
// `mend` is empty if nothing is to be mended, or if no command does it.
struct Finding {
  std::string about;
  Verdict verdict;
  std::string words;
  std::string mend;
};

class Findings {
 public:
  void Good(std::string about, std::string words) {
    Add(std::move(about), Verdict::kGood, std::move(words), "");
  }
  void Note(std::string about, std::string words, std::string mend = "") {
    Add(std::move(about), Verdict::kNote, std::move(words), std::move(mend));
  }
  void Warn(std::string about, std::string words, std::string mend = "") {
    Add(std::move(about), Verdict::kWarn, std::move(words), std::move(mend));
  }
  void Bad(std::string about, std::string words, std::string mend = "") {
    Add(std::move(about), Verdict::kBad, std::move(words), std::move(mend));
  }
  // Shows findings at once as they come, unless the output is JSON.
  void ShowAs(bool text, bool colour) {
    text_ = text;
    colour_ = colour;
  }
  std::string Json() const;
  bool AnyBad() const;

 private:
  void Add(std::string about, Verdict verdict, std::string words,
           std::string mend);
  bool text_ = false;
  bool colour_ = false;
  std::vector<Finding> all_;
};

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_FINDINGS_H_
