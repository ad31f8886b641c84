"""Texts that tell tokenizers apart, and the text that the small ones here are trained on."""
import random

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"""
          r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
QWEN = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"""
        r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")

WHITE_SPACE = ("\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
               "\u2009\u200a\u2028\u2029\u202f\u205f\u3000")

SENTENCES = [
    "The causeway carries the road across the marsh, and the tide covers it twice a day.\n",
    "Workers send what they've learned; they don't wait for each other's answers.\n",
    "In 1984 the bridge was 1,234.56 metres long; by 2021 it had 17% more traffic.\n",
    "def merge(left, right):\n    return left + right  # the neighbours of the lowest rank\n\n",
    "Der Fährmann über den Fluß sagt: »Grüße!« Les élèves français préfèrent le café.\n",
    "Быстрая лиса прыгает через ленивую собаку. Η γρήγορη αλεπού πηδάει.\n",
    "今日は天気がいいですね。我们在学习机器翻译。안녕하세요 세계.\n",
    "नमस्ते दुनिया, مرحبا بالعالم, שלום עולם, สวัสดีชาวโลก\n",
    "It's what I'd call 'fine'; we'll see, they're sure, you've won, I'm done, can't.\n",
    "😀 👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️ and more emoji 🎉🎉🎉\n",
]


def training_text():
    generator = random.Random(7)
    return [generator.choice(SENTENCES) for _ in range(3000)]


def adversarial_texts():
    texts = [
        "", " ", "  ", "\n", "\r\n", "\n\n\n", " \n", "\n ", "a", " a", "a ", "  a", "a  b",
        "Hello, world!", "Hello  world", "Hello\tworld", "Hello \t world", "Hello \n\n world\n",
        "x\r\n\r\ny", "end.\r\n\r\n  next", "!!!\n\n\nnext", " !!!\r\n x", "\t\tindented\n\t\tmore",
        "    four spaces", "trailing   ", "trailing\n   ", "a\u00a0b", "a \u00a0 b", "\u3000全角",
        "".join(WHITE_SPACE), "x" + "x".join(WHITE_SPACE) + "x", " ".join(WHITE_SPACE) + " x",
        "".join(w * 3 + "q" for w in WHITE_SPACE), "".join(w + "\n" for w in WHITE_SPACE),
        "I'm you're they've he'll she'd it's don't", "I'M YOU'RE THEY'VE HE'LL SHE'D IT'S DON'T",
        "'s't're've'm'll'd", "'S'T'RE'VE'M'LL'D", "''s '' 'x 'l 'lx 'r 'rx 'v '", "it'\u017f fun",
        "'\u017f", "can\u2019t", "rock 'n' roll", "'", "''", "' '", "'ll'", "x'", "'Re 'rE 'lL 'Ll",
        "1", "12", "123", "1234", "12345678901234567890", "1 22 333 4444", " 1234", "3.14159e-10",
        "1,234,567.89", "Ⅷ ½ ² ³ ①②③ ٣٤٥ १२३ 一二三", "abc123def456", "x1y2", "٠١٢٣٤٥٦٧٨٩",
        "😀", "😀😀😀", " 😀 ", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷🇯🇵", "❤️", "❤", "1️⃣ 2️⃣ #️⃣", "x😀y", "🧑🏿‍🚀🚀",
        "e\u0301", "é", "e\u0301e\u0301 été \u00e9t\u00e9! e\u0301te\u0301!", "a\u0300\u0301\u0302\u0303",
        "\u0301", " \u0301x", "q\u0307\u0323 q\u0323\u0307", "\u1e9b\u0323", "\uac00 \u1100\u1161",
        "\u212b \u2126 \uf900 \u0958", "Z\u0351\u036b\u0343\u036a\u0302\u036ba\u0327lgo",
        "\u0928\u093f \u0ba8\u0bbf \u0e01\u0e33 \u1019\u103c\u1014\u103a\u1019\u102c",
        "你好，世界！", "日本語とEnglishの混在", "한국어 텍스트입니다.", "中文 和 English 123 混合",
        "\U00020000\U0002a6d6\U0002ebf0", "ﷺ ﬁ ﬂ ß ẞ İ ı", "العَرَبِيَّة", "עִבְרִית", "ไทยไม่มีช่องว่าง",
        "".join(chr(c) for c in range(32)), "\x00", "a\x00b", "\x7f\x80\x9f", "\x1b[31mred\x1b[0m",
        "\u200b zero\u200bwidth\u200d\u2060\ufeff", "\ufeffBOM", "\u202eRTL\u202c", "\ufffd\ufffe\uffff",
        "\ue000 \U000f0000 \U0010ffff", "\u0378 \U0001c89f \u1c89\ua7cb\U000105c0\U00016d70",
        "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>",
        "<|endoftext", "|endoftext|>", "<|<|endoftext|>|>", "<|begin_of_text|>x<|end_of_text|>",
        "<|im_start|>user\nhi<|im_end|>\n", "<tool_call>{}</tool_call>", "x <mask> y", "<mask>",
        "  <mask>  ", "<s>a</s>", "word words sword a word. word", "wordword", "\u00e9word wordé word",
        "<r>  x", "<r>\n\u3000x<r>", "a <r> <mask> b", "été! e\u0301te\u0301!", "<s>  <mask>\u2003word",
        " zyzzyva zyzzyva  zyzzyva Zyzzyva zyzzyvas", "xzyzzyva", "the the the the",
        "https://example.org/a?b=c&d=%20#e", "foo_bar-baz/qux.cc:42", "if (x<=y) { z+=1; } // ok\n",
        "C:\\path\\to\\file", "...---===+++", "a.b.c", "$100 €200 £300 ¥400", "50% ±3° 6×7÷2≠∞",
        "```python\nprint('hi')\n```\n", "- item\n- item\n\n\n1. one\n2. two\n", "|a|b|\n|-|-|\n",
        "ALLCAPS MixedCase camelCase snake_case", "\u2581\u2581 \u2581x \u2581", "Ġ Ċ ĉ ċ Ġthe",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "the" * 40, "." * 100, " " * 100, "\n" * 100, "é" * 60, "今" * 60, "😀" * 30, "9" * 100,
        "".join(SENTENCES),
    ]
    return texts


def random_texts(count, seed):
    """Strings of characters of all kinds, in short runs."""
    generator = random.Random(seed)
    words = ["'s", "'LL", "the", " the", "<|endoftext|>", "<mask>", "word", "\r\n", "  ", "<r>",
             "<|im_end|>", "été!", "</s>"]

    def run():
        kind = generator.randrange(9)
        if kind == 0:
            return generator.choice(words)
        if kind == 1:
            pool = WHITE_SPACE
        elif kind == 2:
            pool = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        elif kind == 3:
            pool = "0123456789½٣"
        elif kind == 4:
            pool = " \n'.,!?-"
        elif kind == 5:
            pool = [chr(generator.randrange(0x300, 0x370)), "e", "a", "\u1100", "\u1161", "\u11a8"]
        elif kind == 6:
            start = generator.choice([0x80, 0x400, 0x900, 0x3040, 0x4e00, 0xac00, 0x1f600])
            pool = [chr(start + generator.randrange(200)) for _ in range(20)]
        elif kind == 7:
            pool = [chr(generator.randrange(0x20))]
        else:
            pool = [chr(generator.choice([c for c in (generator.randrange(0x110000),)
                                          if not 0xD800 <= c < 0xE000] or [0x20]))]
        return "".join(generator.choice(pool) for _ in range(generator.randrange(1, 6)))

    return ["".join(run() for _ in range(generator.randrange(1, 30))) for _ in range(count)]


def every_code_point():
    """Every code point of the planes that have any, and a sample of the others, 1,024 to a string,
    each where the regular expressions decide: after and before letters, digits, signs, spaces and an
    apostrophe."""
    generator = random.Random(5)
    points = [c for c in range(0x33480) if not 0xD800 <= c < 0xE000]
    points += range(0xE0000, 0xE0200)
    points += sorted(generator.sample(range(0x33480, 0x110000), 2000))
    for begin in range(0, len(points), 1024):
        chunk = [chr(c) for c in points[begin:begin + 1024]]
        for form in ("a{}b", "1{}2", "!{}!", " {}", "{}x", "'{}e\u00e9"):
            yield " ".join(form.format(c) for c in chunk)
        yield "".join(chunk)
