"""Sentences and words, which of them were copied, and the words of repair in many languages.

Three classes. MOVES say what is wrong or what is done about it, THINGS what it happens to; both are
stems, matched at the start of a word. FUNCTION_WORDS hold a sentence together and say nothing.
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

# ruff: noqa: RUF001 (Cyrillic words)

_LONGEST = 10

FUNCTION_WORDS = frozenset(
    """
    a about after again all already also always am an and any are as at be because been before being
    between both but by can could did do does done down during each either every for from had has
    have he her here his how i if in into is it its just may me might more most much must my no nor
    not now of off on once one only or other our out over own per same shall she should since so
    some still such than that the their them then there these they this those though through to too
    two under until up us very was we were what when where whether which while who whose why will
    with within would yet you your
    aber als am an auf aus bei bin bis da dann das dass dem den denn der des die dies diese doch ein
    eine einen einer eines er es für hat ich ihn im in ist man mehr mit nach nicht noch nun nur oder
    schon sein sich sie sind so um und vom von vor war was weil wenn wie wird wir wo zu zum zur
    au aux avec car ce cela ces cette comme dans de des donc du elle en est et il je la le les leur
    lui mais ne nous on ou où pas plus pour puis qu que qui sa sans ses si son sont sur un une vous
    al como con cuando de del desde el ella en entre es esta este está la las lo los muy más ni no o
    para pero por porque que se según ser si sin sobre son su también un una y ya yo
    ao aos as até com da das do dos e ela ele em essa esse está eu isso já mas na nas no nos não nós
    o os ou para pela pelo por quando que se sem seu sua são também um uma
    al anche che chi ci come con cui da dal dalla dei del della di e ed gli ha ho i il io la le lo
    ma nel nella non o per perché più poi quando quindi se si sono su sul un una è
    ale aż bez bo by być co czy dla dlatego do go i ich ja jak jako je jednak jego jej jest jeszcze
    już każdy kiedy która które który lecz lub ma mi może na nad nie niż o od oraz po pod ponieważ
    potem przed przez przy raz się są także tam te tego ten teraz to tu tylko tym w więc wtedy z za
    ze zaś że żeby
    а без более бы был была были было быть в вам вас весь во вот все всё вы где да для до его ее
    если есть ещё еще её ж же за затем и из или им их к как когда который которая которое ли мне
    можно мы
    на над надо нам не него нет ни но ну нужно о об однако он она они оно от по под поэтому после
    потом потому при с сам снова со так также там то тогда только того уже хотя чем через что чтобы
    эта эти это этом этот я
    """.split()
)

_MOVES = (
    # English
    """
    abort absent add adding adds added adjust align annotat append appl assign await backport bail
    borrow break breaks broke broken bump bypass call cast catch chang close collect compar
    conflict configur convert
    copied copies copy correct crash creat declar default defer defin delet differ disabl dial drain
    drop duplicat early edit emit empty enabl escap exclud export extend extract expire fall fetch
    filter flush forget forgot forgotten guard handl hang hold import includ incorrect increas
    initiali inject insert inspect install instead invalid invert join keep lack late leak leav load
    lock log logs lose loses lost merg mismatch miss mock move moves moved moving narrow normali
    null obsolete offset omit open outdated overflow overrid overwrit panic parse parses parsing
    pass passes passed passing patch pin poll print push rais read readin rebuild receiv reconnect
    redial reduc refactor reject releas reload remov renam replac reproduc requir rerun reset resolv
    restart restor retry return revert rewrit rewrot roll run runs running save scan search select
    send sends sent separat set sets setting shadow skip skips skipped sort split stale start stop
    store stub subscrib swap switch throw trim truncat twice unblock undefined unlock unpack unset
    untouched unused updat upgrad use used uses using valid verif widen without wrap write writes
    writing written wrong yield
    """
    # German, French, Spanish, Portuguese, Italian
    """
    abbrech aktualis bricht entfern ergänz ersetz erwart falsch fehlend fehlt füg gib gibt hinzu
    häng installier kopier lade lass les lies lösch nutz prüf ruf schließ schreib setz speicher
    start umbenenn veraltet verschieb verwend wiederhol zurück änder öffn übergeb
    ajout appell corrig exécut ferm install lanc lire lis manqu modifi ouvr périm remplac renomm
    renvoi retir retourn relanc supprim utilis vérifi vide écri
    agreg añad borr cambi cierr comprob corrij corregir devolv devuelv ejecut elimin escrib falta
    faltan instal leer leo llam pasar paso quit reemplaz renombr sustitu usar uso verific
    acrescent adicion alter apag atualiz cham devolv envi escrev execut exclu fech mud pass remov
    renome retorn rod substitu usar verifi
    aggiung aggiorn cambi cancell chiam chiud controll eseg install legg manca mancan modific passa
    rimuov rinomin riscriv sostitu usa usare verific
    """
    # Polish, Russian
    """
    brak dodaj dodam dodan dodać nadpis odczyt otwier otworz otwórz pomij pomin powtór przeczyt
    przekaz przekaż przenie przestarz sprawdz sprawdź uruch ustaw usun usuw usuń utworz utwórz użyj
    użyję używ wczyt wstaw wywoł zachow zaktual zainstal zamien zamian zamkn zapis zawier zmieni
    zostaw zwróc zwrac zwróć trzyma podłącz połącz niepraw błędn
    верн возвра вста вызв вызов вызыва держ добав заверш заверн закры замен запиш запис запус запуш
    использ измен исключ лишн неверн неправил обнов одновремен опущ оста останов откр отсутств падае
    перезапис переда переимен перенес переп перех пиш повтор подключ проверя провер прочит пропус
    пропущ пуст собер собир созда сохран сравн теря убер удал упа установ устар читае
    """
)

_THINGS = (
    """
    access allocat ambient api argument array assert async attribut backoff backslash backtrac binar
    bodies body boolean boundar branch buffer bug bugs build built byte cache callback caller case
    cases caus cent cents channel char chunk class client code codes column command commit compil
    complain concurr condition config connect const constant constructor contain context count cover
    cursor data database deadlock decorator definition depend deprecat descript destruct diagnos
    diff director disk driver element encod endpoint entries entry enum env environment error event
    exact except exit expect expression extension fail false field file final fix fixed fixes fixing
    fixture flag float folder format frame function generic git global group hash header heap helper
    hook host identifier import indent index inner input instanc integer interfac interval invoic
    issue item iterat job json key keyword kernel label lambda layer length lexer library lifetime
    limit line linker linter list listener local loop machine macro main manifest map mapping match
    memory message metadat method middlewar migrat missin mode module mutab mutex name names
    namespac network newline node number object operand operator option order origin output overload
    owner package page panic parameter parent parser path pattern payload permission pipeline plain
    pointer pool port posit postcondit prefix primar private problem process program project promise
    propert protocol proxy public queue quer race random range reader reason record recurs referenc
    regex registr regress relativ remaind remaining repo request resourc respons result root round
    route row rows rule runner runtime schema scope script secret section semicolon sequenc server
    session setup shell signal signatur socket source space spaces stack state statement static
    status step stream strict string struct subclass substring suffix suite symbol syntax system
    tab table tabs target task template terminal test text thread timeout timer timestamp timezone
    token tool trace traceback trailing transact transform transpil tree trigger tsconfig tuple type
    types typescript undefined unicode union unit url user utf util valu variabl variant vector
    version view warning web whitespace window worker workflow workspace writer yaml
    """
    """
    ablauf argument ausdruck ausgabe befehl bibliothek datei eingabe element fehler feld funktion
    kanal klasse knoten konfig länge liste meldung methode modul objekt ordner paket parameter pfad
    puffer rest schleife schlüssel signatur skript spalte test typ ursache variable verbindung
    verzeichnis wert zeichen zeile
    boucle chaîne champ chemin clé classe code commande compil dossier erreur fichier fonction
    ligne liste modul objet paquet paramètre serveur tampon tableau test type valeur variable
    archivo argumento bucle búfer cadena campo carpeta clase clave código comando compil error
    función línea lista módulo método objeto paquete parámetro prueba ruta servidor tipo valor
    arquivo argumento caminho campo chave classe código comando erro função laço linha lista
    módulo método objeto pacote parâmetro pasta servidor teste tipo valor variável
    argoment cartella chiave ciclo classe codice comando errore file funzione libreria lista metodo
    modulo oggetto pacchetto parametro percorso riga stringa test tipo valore variabile
    """
    """
    argument błąd błęd deklar element flag folder funkcj import indeks kanał katalog klas klucz kod
    kodu kompil konfig linia linie linii list metod moduł nazw obiekt odpowied pakiet parametr petl
    pętl plik polecen połączeni program projekt przyczyn przypad referenc serwer skrypt sygnał
    tablic tabul tekst test typ typam typu wartoś wcięc wektor wersj wiersz wpis wynik zmienn zmian
    znak ścież żądan
    аргумент буфер вектор верси выво главн класс ключ код команд компил конфиг массив метод модул
    настройк объект отступ ошибк пакет папк параметр перемен пол полож провер проект путь пути
    результат сбор сборк сервер сигнал символ скрипт случа соединен сообщ список ссылк строк табул
    текст тест тип типы типа типами файл флаг функци цикл канал имя имен значен запрос ответ причин
    """
)

_CJK_MOVES = frozenset(
    "加添删刪改修替换換返调調检查查检验验証证漏缺传移装跳过捨除直渡呼変確認実追更置読写書推"
)
_CJK_THINGS = frozenset(
    "行错误误誤试試测測文件循环環数値值类型型码碼末列路径径包库冲缓符残余剩続后後函变量参对象初始化名报報因"
)
_KOREAN = frozenset(
    "추가 삭제 수정 변경 확인 실행 반환 호출 누락 대신 전달 오류 파일 함수 인수 버퍼".split()
)

_MOVE_STEMS = frozenset(_MOVES.split())
_THING_STEMS = frozenset(_THINGS.split())
# A short stem is a whole word: `set` is no `settle`, `use` no `user`.
_WHOLE = 4


def is_move(word: str) -> bool:
    """Tell whether a lower-cased word says what is wrong or what to do about it.

    >>> [is_move(word) for word in ("replaced", "banana", "error")]
    [True, False, False]
    """
    return _starts(word, _MOVE_STEMS) or word in _KOREAN or bool(_CJK_MOVES.intersection(word[:2]))


def is_technical(word: str) -> bool:
    """Tell whether a lower-cased word belongs to a talk about code at all."""
    return is_move(word) or _starts(word, _THING_STEMS) or bool(_CJK_THINGS.intersection(word[:2]))


def _starts(word: str, stems: frozenset[str]) -> bool:
    if word in stems:
        return True
    longest = min(len(word), _LONGEST)
    return any(word[:length] in stems for length in range(_WHOLE, longest + 1))


COPY_LENGTH = 5
COPY_CONTENT = 4  # in the order of a reference, whatever stands between
SHORT_WORDS, SHORT_CHARS = 4, 40  # a heading, or an item too short to stand alone
WRAPPED_CHARS = 60

_CJK = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
# One sign of a script without spaces says little: its words are overlapping pairs of signs.
_WORD = re.compile(rf"{_CJK}(?={_CJK})|[a-z0-9_$][\w./:@$+-]*|(?!{_CJK})[^\W\d_]\w*")
_SENTENCE_END = re.compile(r"\n|(?<=[.!?;])\s|(?<=[\u3002\uff01\uff1f])")
_MARK = re.compile(r"[ \t]*(?:#{1,6}[ \t]|[-*+\u2022][ \t]|\d{1,3}[.)][ \t])?[ \t]*")
_BULLET = re.compile(r"[ \t]*(?:[-*+\u2022]|\d{1,3}[.)])[ \t]")
CJK = re.compile(_CJK)


@dataclass(frozen=True)
class Word:
    """A lower-cased word, where it starts, and what of it is the answer's own.

    `own`: not part of a copied run; `novel`: no reference has the word at all.
    """

    text: str
    start: int
    own: bool
    novel: bool


@dataclass(frozen=True)
class Sentence:
    """A sentence or a line: its lower-cased text and its words, placed relative to it."""

    text: str
    words: tuple[Word, ...]

    @property
    def own(self) -> list[Word]:
        """The words that are not copied."""
        return [word for word in self.words if word.own]


def words(text: str) -> list[str]:
    """Lower-cased words; paths, codes and identifiers stay whole, CJK text comes in pairs.

    >>> words("Open src/cli.ts:41, then run it.")
    ['open', 'src/cli.ts:41', 'then', 'run', 'it']
    """
    return [word for _, word in _placed(text.lower())]


def unwrapped(text: str) -> str:
    """Drop Markdown's marks; join headings to what they head, and lines that were wrapped.

    >>> unwrapped("**Cause**\\n\\n- the loop in the parser ends early")
    'Cause: the loop in the parser ends early'
    """
    lines: list[str] = []
    short = ""
    wrapped = False
    for raw in text.replace("**", "").split("\n"):
        line = raw[_mark_end(raw) :].rstrip()
        if not line:
            wrapped = False
        elif _is_short(line) and len(short) < WRAPPED_CHARS:
            short += line.rstrip(":") + ": "
            wrapped = False
        elif wrapped and not short and not _BULLET.match(raw):
            lines[-1] += " " + line
            wrapped = len(raw) >= WRAPPED_CHARS
        else:
            lines.append(short + line)
            short = ""
            wrapped = len(raw) >= WRAPPED_CHARS
    return "\n".join([*lines, short] if short else lines)


def sentences(text: str, references: Iterable[str]) -> list[Sentence]:
    """Split a text; words inside a run of COPY_LENGTH words of a reference are not its own.

    A copy stays a copy when other words are woven in: the words of content that a reference knows
    are also compared without those between them.
    """
    text = text.lower()
    known = [(words(reference), reference.split("\n")) for reference in references]
    whole = {tuple(words(line)) for _, lines in known for line in lines}
    vocabulary = {word for found, _ in known for word in found}
    placed = _placed(text)
    flow = [word for _, word in placed]
    copied = {index for found, _ in known for index in _copied_from(flow, found)}
    starts = [start for start, _ in placed]
    out = []
    for begin, end in _cuts(text):
        first, last = bisect_left(starts, begin), bisect_left(starts, end)
        is_line = tuple(flow[first:last]) in whole
        out.append(
            Sentence(
                text[begin:end],
                tuple(
                    Word(
                        flow[index],
                        starts[index] - begin,
                        own=not (is_line or index in copied),
                        novel=flow[index] not in vocabulary,
                    )
                    for index in range(first, last)
                ),
            )
        )
    return out


def _mark_end(line: str) -> int:
    match = _MARK.match(line)
    return match.end() if match else 0


def _is_short(line: str) -> bool:
    return (
        len(line.split()) <= SHORT_WORDS
        and line[-1] not in ".!?;\u3002"
        and len(line) < SHORT_CHARS
    )


def _placed(lowered: str) -> list[tuple[int, str]]:
    return [
        (match.start(), _word_at(lowered, match.start(), match.end()))
        for match in _WORD.finditer(lowered)
    ]


def _word_at(lowered: str, start: int, end: int) -> str:
    if CJK.match(lowered, start):
        return lowered[start : start + 2]
    return lowered[start:end].rstrip(".:/-+")


def _cuts(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for match in _SENTENCE_END.finditer(text):
        yield begin, match.start()
        begin = match.end()
    yield begin, len(text)


def _copied_from(flow: list[str], found: list[str]) -> set[int]:
    vocabulary = set(found)
    content = [word for word in found if word not in FUNCTION_WORDS]
    picked = [
        index
        for index, word in enumerate(flow)
        if word in vocabulary and word not in FUNCTION_WORDS
    ]
    runs, content_runs = set(_runs(found, COPY_LENGTH)), set(_runs(content, COPY_CONTENT))
    return _copied(flow, range(len(flow)), runs, COPY_LENGTH) | _copied(
        flow, picked, content_runs, COPY_CONTENT
    )


def _copied(
    flow: list[str], picked: Sequence[int], runs: Collection[tuple[str, ...]], length: int
) -> set[int]:
    copied: set[int] = set()
    for start, run in enumerate(_runs([flow[index] for index in picked], length)):
        if run in runs:
            copied.update(picked[start : start + length])
    return copied


def _runs(found: list[str], length: int) -> Iterable[tuple[str, ...]]:
    return zip(*(found[offset:] for offset in range(length)), strict=False)
